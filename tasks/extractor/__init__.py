"""``extractor``: import through the extraction server (document 1, "Extraction step procedure"; document 2)."""
