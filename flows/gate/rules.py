"""Rules for a release: the report must cover the files and the destination, and needs a comment if it has stops.

Document 5, §3; ``4-product.md`` §4, "Wait". The same rules apply to the form in the Prefect UI and to commands.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from config import PipelineConfig
from tasks import declared
from tasks.shared.report import Approval, Shown, visible_text

WITHOUT_REPORT = "the job began to wait without a release report"
OTHER_SETTINGS = "the destination or the settings of the release report changed after it was made"
OTHER_THAN_SEEN = "the release report was made from other files"
OLDER = "the corrected files are newer than the release report"
NOT_MADE = "there is no release report"


def settings_digest(config: PipelineConfig, *, inside: bool = False) -> str:
    """Return the SHA-256 of everything that a report depends on besides the files: its settings, the rules, and the
    destination unless the data stay ``inside``.
    """
    from tasks.release_report.report.facts import destination_of  # a status needs no words about destinations

    rules, kept = rules_of(config)
    where = None if inside else destination_of(config)
    settings = config.report.model_dump(mode="json", exclude={"enabled"})
    given = {name: "" if value is None else value for name, value in settings.items()}
    known = [given, asdict(where) if where else None, str(rules), sorted(kept)]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def rules_of(config: PipelineConfig) -> tuple[Path | None, tuple[str, ...]]:
    """Return the file of pseudonymization rules and the kept identifiers, if a step uses them."""
    takes = any("anonymization_config" in declared(name).takes for name in config.pipeline.enabled_steps)
    service = config.services.pseudonymizer
    return (service.anonymization_config, tuple(service.kept_identifiers)) if takes else (None, ())


def objection(decision: Approval, shown: Shown | None) -> str | None:
    """Return why a decision made now is refused, in words that continue "not released: …"; ``None`` if it is accepted.

    A rejection is always accepted.
    """
    if not decision.approved:
        return None
    if not visible_text(decision.by):
        return "a decision needs a name"
    if shown is None or not shown.needs_comment or visible_text(decision.comment):
        return None
    what = "is missing" if shown.missing is not None else f"has stops ({shown.stops})"
    return f"the release report {what}, and no comment is given"


def outdated(shown: Shown | None, files: str, config: PipelineConfig) -> str | None:
    """Return why the current report does not cover ``files`` (their digest) and this configuration, or ``None``."""
    if not config.report.enabled:
        return None
    if shown is None:
        return WITHOUT_REPORT
    if shown.seen != files:
        return OTHER_THAN_SEEN
    return OTHER_SETTINGS if _set_otherwise(shown, config) else None


def to_be_made(
    job: Path, shown: Shown | None, files: str, config: PipelineConfig, *, corrected: bool = False
) -> str | None:
    """Return why the release report must be made again before a decision on ``files``, or ``None``.

    ``corrected``: the files that would be read are corrected ones.
    """
    why = outdated(shown, files, config)
    if why is not None:
        return OLDER if corrected and why == OTHER_THAN_SEEN else why
    return NOT_MADE if config.report.enabled and shown is not None and not is_there(job, shown) else None


def is_there(job: Path, shown: Shown) -> bool:
    """Return whether a report was made and its page is still in the directory of the ``job``."""
    return shown.page is not None and (job / shown.page).is_file()


def other_settings(shown: Shown | None, config: PipelineConfig) -> tuple[str, ...]:
    """Return why released data must not be sent under this configuration; empty if they may, or without a report."""
    if not config.report.enabled or shown is None or not shown.settings:
        return ()
    return (OTHER_SETTINGS,) if _set_otherwise(shown, config) else ()


def _set_otherwise(shown: Shown, config: PipelineConfig) -> bool:
    return shown.settings != settings_digest(config, inside=shown.inside)
