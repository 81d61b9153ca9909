"""Read files of the steps besides the data: pseudonymization rules, validation findings, exclusion lists.

A file that cannot be read is left out of the report, which says so.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Final

import yaml

from config import Role, has_role
from tasks.release_report.measure.cells import Bounds, Cell
from tasks.release_report.measure.measured import Measured
from tasks.release_report.report.facts import (
    OTHERS,
    FindingKind,
    RulesSummary,
    Validated,
)
from tasks.release_report.report.sections.query import left_out_for_consent
from tasks.shared.files.out_file import as_text
from tasks.shared.report import FINDINGS_TABLE, StepReport
from tasks.shared.stop import Stop

_MOST_FINDINGS: Final = 200
"""Kinds of findings of a validation that are told apart; further ones are left out."""
_EXTRACTION: Final = Path("extraction", "reports")
_MOST_PATIENTS: Final = 1_000_000
_ROWS: Final = 10_000
"""Of so many, one looks whether to stop."""
_LINE: Final = re.compile(r"[0-9]{1,9}")
_NOBODYS: Final = range(0)
_MOST_PROFILES: Final = 20
"""Profiles that are told apart of each; further ones are one."""


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
    paths = tuple((str(rule.get("path", "")), str(rule.get("method", "")).lower()) for rule in named)
    return RulesSummary(
        name=path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        paths=paths,
        removes=any(method == "remove" and "." not in where.partition("(")[0] for where, method in paths),
    )


def read_validated(
    job: Path, steps: Sequence[StepReport], leaving: Measured, imported: Measured | None
) -> Iterator[Validated]:
    """Yield the findings of each validation out of its ``summary.csv`` in the directory of the ``job``."""
    for step in steps:
        folder = step.details.get("reports")
        if not has_role(step.name, Role.VALIDATE) or step.state != "completed" or not isinstance(folder, str):
            continue
        with suppress(OSError, UnicodeDecodeError, csv.Error):
            yield Validated(step.position, _findings(job / folder / FINDINGS_TABLE, leaving, imported))


def patients_outside(job: Path, steps: Sequence[StepReport], stop: Stop) -> int | None:
    """Count the patients of whom resources were left out for want of consent, in the extraction server's list.

    Return ``None`` if there is none, or if it is not about as many resources as the result says. Raises ``Stopped``.
    """
    done = (one for one in reversed(steps) if one.state == "completed")
    step = next((one for one in done if has_role(one.name, Role.EXTRACT)), None)
    reports = step.details.get("reports") if step is not None else None
    names = [one for one in reports if isinstance(one, str)] if isinstance(reports, list) else []
    name = next((one for one in names if "resource-exclusions" in one), None)
    if step is None or name is None:
        return None
    resources = 0
    patients: set[int] = set()
    try:
        with _text(job / _EXTRACTION / Path(name).name, encoding="utf-8-sig") as file:
            for number, row in enumerate(csv.DictReader(file)):
                if not number % _ROWS:
                    stop.check()
                if str(row.get("Reason") or "").upper() != "CONSENT":
                    continue
                resources += 1
                patients.add(hash(str(row.get("Patient-ID") or "").rpartition("/")[2]))
                if len(patients) > _MOST_PATIENTS:
                    return None
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    known = hash("") not in patients and resources == left_out_for_consent(step.details)
    return len(patients) if known else None


def _text(path: Path, *, encoding: str) -> io.TextIOWrapper:
    return path.open(encoding=encoding, newline="")


def _findings(summary: Path, leaving: Measured, imported: Measured | None) -> dict[FindingKind, dict[str, Cell]]:
    """Return the patients of each kind of finding by profile, for files with one patient per line."""
    numbers = _a_patient_a_line(leaving, imported)
    found: dict[FindingKind, dict[str, Cell]] = {}
    anybodys: set[FindingKind] = set()
    bounds = Bounds()
    with _text(summary, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            kind = str(row.get("resource") or "").partition("/")[0]
            what = (str(row.get("severity") or ""), kind, str(row.get("message_id") or ""))
            by_profile = found.get(what)
            if by_profile is None:
                if len(found) >= _MOST_FINDINGS:
                    continue
                by_profile = found[what] = {}
            of_file, line = numbers.get(str(row.get("file") or ""), _NOBODYS), str(row.get("line") or "")
            at = int(line) - 1 if _LINE.fullmatch(line) else -1
            if not 0 <= at < len(of_file):
                anybodys.add(what)
                continue
            profile = str(row.get("profile") or "")
            if profile not in by_profile and (len(by_profile) >= _MOST_PROFILES or bounds.crowded):
                profile = OTHERS
            cell = by_profile.get(profile)
            if cell is None:
                cell = by_profile[profile] = Cell()
            cell.add(of_file[at], bounds)
    return {what: {} if what in anybodys else by_profile for what, by_profile in found.items()}


def _a_patient_a_line(leaving: Measured, imported: Measured | None) -> dict[str, range]:
    """Return numbers for the lines of each file, by its last name, in which each line is another patient.

    The result is empty if a patient is in two files.
    """
    lines: dict[str, int] = {}
    others: set[str] = set()
    for measured in (leaving, *([imported] if imported is not None else ())):
        apart = sum(file.patients for file in measured.files) == measured.patients
        for file in measured.files:
            name = as_text(file.name.rpartition("/")[2])  # as the summary spells it
            lines[name] = max(lines.get(name, 0), file.lines)
            if not apart or file.patients != file.lines:
                others.add(name)
    begins = accumulate(lines.values(), initial=0)
    return {name: range(at, at + n) for at, (name, n) in zip(begins, lines.items(), strict=False) if name not in others}
