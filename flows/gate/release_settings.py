"""What a release report rests on beside the files: how it is configured, where the data go, the rules."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from config import PipelineConfig
from config.report import Language, OnStop
from tasks import declared
from tasks.release_report.report.document import Decided
from tasks.release_report.report.facts import Destination, Settings, destination_of
from tasks.shared.report import Approval


def settings(config: PipelineConfig) -> Settings:
    """What the configuration says of the report."""
    report = config.report
    return Settings(
        k=report.k,
        language="de" if report.language is Language.DE else "en",
        quasi_identifiers=tuple(one.value for one in report.quasi_identifiers),
        region_prefix=report.region_prefix,
        purpose=report.purpose or "",
        legal_basis=report.legal_basis or "",
        retention=report.retention or "",
        contact=report.contact or "",
        recipient=report.recipient or "",
        reviewers=report.reviewers,
        on_stop="fail" if report.on_stop is OnStop.FAIL else "tell",
    )


def settings_digest(config: PipelineConfig, *, inside: bool = False) -> str:
    """SHA-256 over what a report rests on beside the files: its settings, where the data go, unless they stay inside,
    the rules.
    """
    rules, kept = rules_of(config)
    where = None if inside else destination(config)
    known = [asdict(settings(config)), asdict(where) if where else None, str(rules), sorted(kept)]
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


def documented(decisions: Iterable[tuple[int, Approval]]) -> tuple[Decided, ...]:
    """The decisions of the record as the report has them."""
    shared = ("approved", "by", "login", "where", "when", "comment", "despite", "files", "report")
    return tuple(Decided(**{name: getattr(one, name) for name in shared}) for _, one in decisions)
