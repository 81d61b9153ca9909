"""The sections 2 to 18 of the release report, one module each or a few that belong together."""
