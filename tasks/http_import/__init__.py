"""``http_import``: import from an HTTP URL (docs/steps.md)."""
