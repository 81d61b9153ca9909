"""A FHIR R4 server on SQLite with the manners of HAPI or Blaze."""
