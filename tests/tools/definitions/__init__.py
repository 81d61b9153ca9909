"""Makes the definitions of FHIR R4 that the sandbox reads."""
