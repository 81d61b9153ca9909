"""Read the pseudonymization rules for the report. A file that cannot be read is left out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import yaml

from tasks.release_report.report.facts import RulesSummary


def read_rules(path: Path) -> RulesSummary | None:
    """Return what the report says of an anonymization file; ``None`` if it cannot be read.

    The file may hold keys: no value of its parameters is kept.
    """
    try:
        content = path.read_bytes()
        document = yaml.safe_load(content)
    except (OSError, yaml.YAMLError, RecursionError, ValueError):
        return None
    rules = document.get("fhirPathRules") if isinstance(document, Mapping) else None
    named = [rule for rule in rules if isinstance(rule, Mapping)] if isinstance(rules, list) else []
    return RulesSummary(
        name=path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        removes=any(
            str(rule.get("method", "")).lower() == "remove" and "." not in str(rule.get("path", "")).partition("(")[0]
            for rule in named
        ),
    )
