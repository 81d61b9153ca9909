"""Code shared by the sandbox services: HTTP frame, faults, credentials, and FHIR definitions."""
