"""Rules for a release: the reviewed report, a reason if it has stops, a second reviewer.

Document 5, §3; ``4-product.md`` §2 and §4, "Wait". The same rules apply to the form in the Prefect UI, to commands and
to the record of an earlier run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from config import PipelineConfig
from flows.output import one_line
from tasks import declared
from tasks.shared.errors import InputError
from tasks.shared.errors import shown as quoted
from tasks.shared.report import LONGEST_TEXT, Approval, Shown, visible_text

WITHOUT_REPORT = "no release report was made"
ANOTHER_REPORT = "the decision was for another release report"
OTHER_SETTINGS = "the destination or the settings of the release report changed after it was made"
TWO_PEOPLE = "report.reviewers requires two different people to release"
GONE = "the release report is missing or was edited"
OTHER_FILES = "the first of two decisions was for other files"
OTHER_THAN_SEEN = "the release report was made from other files"
OLDER = "the corrected files are newer than the release report"
NOT_MADE = "the release report could not be made"
NO_REASON = "the release report has stops, and the decision gives no reason"

_NOT_SHOWN: Final = {"enabled", "copy_to", "link"}
"""Settings of ``report`` that change nothing in a report."""


def settings_digest(config: PipelineConfig, *, inside: bool = False) -> str:
    """Return the SHA-256 of everything that a report depends on besides the files: its settings, the rules, and the
    destination unless the data stay ``inside``.
    """
    from tasks.release_report.report.facts import destination_of  # a status needs no words about destinations

    rules, kept = rules_of(config)
    where = None if inside else destination_of(config)
    settings = config.report.model_dump(mode="json", exclude=_NOT_SHOWN)
    given = {name: "" if value is None else value for name, value in settings.items()}
    known = [given, asdict(where) if where else None, str(rules), sorted(kept)]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def rules_of(config: PipelineConfig) -> tuple[Path | None, tuple[str, ...]]:
    """Return the file of pseudonymization rules and the kept identifiers, if a step uses them."""
    takes = any("anonymization_config" in declared(name).takes for name in config.pipeline.enabled_steps)
    service = config.services.pseudonymizer
    return (service.anonymization_config, tuple(service.kept_identifiers)) if takes else (None, ())


def stamped(decision: Approval, shown: Shown | None) -> Approval:
    """Return a decision with the hash of its report and the stops that it overrides."""
    if shown is None:
        return decision
    overridden = shown.open if decision.approved else ()
    return decision.model_copy(update={"report": shown.sha256, "overridden": overridden})


def answers(lines: Iterable[str], shown: Shown | None) -> dict[str, str]:
    """Return a reviewer's answers to findings by their keys. Each line is ``FINDING=TEXT``; ``FINDING`` is the key of a
    finding of the report, or its code where that is the code of one finding only.

    Raises:
        InputError: a line has no text or too long a one, or names no finding of the report, or several.
    """
    known = (*shown.stops, *shown.looks) if shown is not None else ()
    found: dict[str, str] = {}
    for line in filter(str.strip, lines):
        name, why = _split_answer(line.strip(), known)
        keys = [key for key in known if key == name] or [key for key in known if key.partition(" ")[0] == name]
        if len(keys) != 1 or not why:
            problem = "needs a text: FINDING=TEXT" if not why else "names several findings" if keys else "is no finding"
            raise InputError(
                "finding-unknown", f"the answer to {quoted(name)} {problem}", context="\n  ".join(keys or known),
                hint="name a stop or a look of the release report by its key",
            )  # fmt: skip
        if len(why) > LONGEST_TEXT:
            raise InputError(
                "answer-too-long", f"the answer to {quoted(keys[0])} is longer than {LONGEST_TEXT:,} characters",
                hint="shorten it",
            )  # fmt: skip
        found[keys[0]] = why
    return found


def _split_answer(line: str, known: Iterable[str]) -> tuple[str, str]:
    """Return finding and text of ``FINDING=TEXT``. A key may contain ``=`` itself, in the URL of an extension."""
    for key in sorted(known, key=len, reverse=True):
        text = line[len(key) :].lstrip()
        if line.startswith(key) and text.startswith("="):
            return key, visible_text(text[1:])
    name, _, text = line.partition("=")
    return name.strip(), visible_text(text)


def objection(decision: Approval, first: Approval | None, config: PipelineConfig) -> str | None:
    """Return why a decision made now is refused, in words that continue "not released: …"; ``None`` if it is accepted.

    ``first`` is the first of two decisions. A rejection is always accepted.
    """
    if not decision.approved:
        return None
    if not visible_text(decision.by):
        return "a decision needs a name"
    if decision.refused:
        return f"not acceptable ({len(decision.refused)}): {one_line(', '.join(decision.refused))}"
    if open_ := decision.unexplained:
        stops = len(open_)
        what = "is missing" if decision.report == "" else f"has stops ({stops})"
        return f"the release report {what}, and no reason is given"
    if config.report.reviewers > 1 and first is not None and first.same_person(decision):
        return f"{one_line(first.by)} has already released it, and the second decision needs a different person"
    return None


def is_first(decision: Approval, first: Approval | None, config: PipelineConfig) -> bool:
    """Return whether a decision needs a second one by another person."""
    return decision.approved and config.report.reviewers > 1 and first is None


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
    job: Path, position: int, shown: Shown | None, files: str, config: PipelineConfig, *, corrected: bool = False
) -> str | None:
    """Return why the release report must be made again before a decision on ``files``, or ``None``.

    ``corrected``: the files that would be read are corrected ones.
    """
    why = outdated(shown, files, config)
    if why is not None:
        return OLDER if corrected and why == OTHER_THAN_SEEN else why
    if config.report.enabled and shown is not None and shown.missing is not None:
        return NOT_MADE
    return gone(job, position, shown, config)


def other_report(
    approval: Approval, first: Approval | None, shown: Shown | None, config: PipelineConfig
) -> tuple[str, ...]:
    """Return why an approval does not cover the current report, one line per reason; empty if it does."""
    if approval.approved and config.report.reviewers > 1 and (first is None or first.same_person(approval)):
        return (TWO_PEOPLE,)
    if approval.approved and config.report.reviewers > 1 and first is not None and first.files != approval.files:
        return (OTHER_FILES,)
    if not config.report.enabled:
        return ()
    if shown is None:
        return (WITHOUT_REPORT,)
    if approval.report != shown.sha256 or (first is not None and first.report != shown.sha256):
        return (ANOTHER_REPORT,)
    if _set_otherwise(shown, config):
        return (OTHER_SETTINGS,)
    if approval.refused or approval.model_copy(update={"overridden": shown.open}).unexplained:
        return (NO_REASON,)
    return ()


def gone(job: Path, position: int | None, shown: Shown | None, config: PipelineConfig) -> str | None:
    """Return the error if the report in the directory of the ``job`` is not the recorded one. This blocks a decision.

    Its contents are never trusted: the stops are in the record.
    """
    if not config.report.enabled or shown is None or shown.missing is not None:
        return None
    from tasks.release_report.page import files  # a status needs no page

    return None if files.is_as_made(job, position, shown.sha256) else GONE


def other_settings(shown: Shown | None, config: PipelineConfig) -> tuple[str, ...]:
    """Return why released data must not be sent under this configuration; empty if they may, or without a report."""
    if not config.report.enabled or shown is None or not shown.settings:
        return ()
    return (OTHER_SETTINGS,) if _set_otherwise(shown, config) else ()


def _set_otherwise(shown: Shown, config: PipelineConfig) -> bool:
    return shown.settings != settings_digest(config, inside=shown.inside)
