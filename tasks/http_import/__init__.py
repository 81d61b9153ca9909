"""``http_import``: import from an HTTP URL (document 3 §8)."""
