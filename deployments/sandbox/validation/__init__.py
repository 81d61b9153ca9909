"""Sandbox validation service (document 3 §6, ``4-product.md`` §8): checks the FHIR R4 base rules and lists its gaps."""
