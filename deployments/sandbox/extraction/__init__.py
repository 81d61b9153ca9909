"""The sandbox extraction server: document 2 over a directory of FHIR NDJSON (``4-product.md`` §8)."""
