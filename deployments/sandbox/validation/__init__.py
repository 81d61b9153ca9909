"""Sandbox validation service (document 3 §6, ``4-product.md`` §8): FHIR R4 base rules, and says what it leaves out."""
