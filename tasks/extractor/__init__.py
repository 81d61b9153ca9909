"""``extractor``: import through the extraction server (docs/services.md)."""
