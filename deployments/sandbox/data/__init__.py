"""The bundled demo data: a small hospital that never was."""

from pathlib import Path

DATA = Path(__file__).resolve().parent
"""Directory of the checked-in NDJSON files."""
