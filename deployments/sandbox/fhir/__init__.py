"""A FHIR R4 server on SQLite: as much of it as a sender of resources uses."""
