"""``local_import``: import from a local directory (document 1, "services.local_import")."""
