"""The extraction server: all of document 2 over a directory of FHIR NDJSON that is held in memory."""
