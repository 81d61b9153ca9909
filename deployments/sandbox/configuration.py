"""The configuration file of a running sandbox, complete for ``pipeline start``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deployments.sandbox.data import ANONYMIZATION_RULES, DATA, DEMO_CRTDL, DEMO_LOOKUP

STEPS: Final = ("extractor", "validation", "pseudonymizer", "flattening", "wait", "send")
"""Steps that use every service. ``demo`` runs the same steps."""


def configuration(urls: Mapping[str, str], data: Path, jobs: Path) -> str:
    """Return the text of the file."""
    template = (DATA / "sandbox.yaml.template").read_text(encoding="utf-8")
    paths = {"data": data, "jobs": jobs, "rules": ANONYMIZATION_RULES, "lookup": DEMO_LOOKUP}
    values = {name: _text(str(value)) for name, value in (*urls.items(), *paths.items())}
    return template.format_map(values | {"crtdl": DEMO_CRTDL, "steps": ", ".join(STEPS)})


def _text(value: str) -> str:
    """Return a YAML string that is not expanded: JSON is YAML, and ``$${`` stands for ``${``."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${")
