"""The document of the release report, made out of what was measured, and its sections."""
