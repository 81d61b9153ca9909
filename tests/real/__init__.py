"""The pipeline against programs of other people, where they are installed: see ``docs/development.md``."""
