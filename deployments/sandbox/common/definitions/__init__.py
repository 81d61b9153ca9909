"""The definitions of FHIR R4 that the sandbox services read; ``README.md`` names their sources."""
