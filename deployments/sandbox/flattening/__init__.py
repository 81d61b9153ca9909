"""The sandbox flattening service: runs SQL-on-FHIR ViewDefinitions (document 3 §5)."""
