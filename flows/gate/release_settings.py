"""What a release report rests on beside the files: how it is configured, where the data go, the rules."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

from config import PipelineConfig
from tasks import declared
from tasks.release_report.report.facts import Destination, destination_of

_NOT_SHOWN: Final = {"enabled", "copy_to", "link"}
"""Settings of ``report`` that change nothing in a report."""


def settings_digest(config: PipelineConfig, *, inside: bool = False) -> str:
    """Return the SHA-256 over what a report rests on beside the files: its settings, where the data go, unless they
    stay inside, the rules.
    """
    rules, kept = rules_of(config)
    where = None if inside else destination(config)
    settings = config.report.model_dump(mode="json", exclude=_NOT_SHOWN)
    given = {name: "" if value is None else value for name, value in settings.items()}
    known = [given, asdict(where) if where else None, str(rules), sorted(kept)]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def rules_of(config: PipelineConfig) -> tuple[Path | None, tuple[str, ...]]:
    """The rules by which data are made pseudonymous, and the identifiers that are kept, where a step uses them."""
    takes = any("anonymization_config" in declared(name).takes for name in config.pipeline.enabled_steps)
    service = config.services.pseudonymizer
    return (service.anonymization_config, tuple(service.kept_identifiers)) if takes else (None, ())


def destination(config: PipelineConfig) -> Destination | None:
    """Where data leave for, if a step lets them."""
    leaves = any(declared(name).delivers for name in config.pipeline.enabled_steps)
    return destination_of(config) if leaves else None
