"""The extraction server: its whole API over a directory of FHIR NDJSON that is held in memory."""
