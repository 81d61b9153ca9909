"""``local_import``: import from a local directory (docs/steps.md)."""
