"""The bundled demo data of a small invented hospital."""

from pathlib import Path

DATA = Path(__file__).resolve().parent
"""Directory of the checked-in NDJSON files."""

DEMO_CRTDL = DATA / "demo.crtdl"
"""A query for the demo data: patients, conditions, observations, and medication, which produces a core file."""

ANONYMIZATION_RULES = DATA / "anonymization.yaml"
"""Rules of the pseudonymization service for the demo data, for ``anonymization_config``."""

DEMO_LOOKUP = DATA / "lookup.json"
"""The lookup table for the groups of ``DEMO_CRTDL``."""

STEPS = ("extractor", "validation", "pseudonymizer", "flattening", "wait", "send")
"""Steps that use every service: those of the configuration that the sandbox writes, and of the demo."""
