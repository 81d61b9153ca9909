"""A FHIR R4 server on SQLite, with the operations that a sender of resources uses."""
