"""A FHIR R4 server on SQLite that behaves like HAPI or Blaze."""
