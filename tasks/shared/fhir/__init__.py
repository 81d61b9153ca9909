"""FHIR as the steps read it: lines, Bundles, CRTDL."""
