"""Makes the release report of a job: measures what leaves and what came in, and says both to the house and others.

It reads data files and files of the job directory, and writes nothing but what the measuring puts into its spool. What
can be known without the data (the query, the rules, the validation's findings) and cannot be read is left out of the
report, which says so; what leaves must be readable.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final

import yaml

from config import Role, has_role
from tasks.release_report.measure.cells import Bounds, Cell
from tasks.release_report.measure.measure import measure
from tasks.release_report.measure.measured import Measured, MeasuredFile
from tasks.release_report.measure.originals import Originals
from tasks.release_report.report.build import build
from tasks.release_report.report.document import Decided, ReleaseReport
from tasks.release_report.report.facts import (
    OTHERS,
    UNRECORDED,
    Corrected,
    Destination,
    Facts,
    FindingKind,
    Rules,
    Settings,
    Validated,
)
from tasks.release_report.report.query import Query, read_query
from tasks.release_report.report.sections.asked import left_out_for_consent
from tasks.shared.errors import storage_errors
from tasks.shared.fhir.reading import LARGEST_RESOURCE
from tasks.shared.files.inventory import Entry, Inventory
from tasks.shared.files.private_file import open_private
from tasks.shared.files.spreadsheet import as_text
from tasks.shared.report import FINDINGS_TABLE, StepReport
from tasks.shared.stop import Stop

SPOOL: Final = ".report"
"""The folder of the job directory for what the measuring puts aside."""

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


def _ignore(_: int) -> None:
    """Nobody looks at the progress."""


Measures = tuple[Measured | None, Measured]
"""What came in, unless it is not compared, and what leaves."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a report is asked about.

    ``leaving`` are the files that ``send`` would read, ``imported`` those of ``import/`` (none: not compared); ``base``
    is the job directory. ``step`` is the position of the wait, ``None`` at the end. ``crtdl`` is the effective query,
    ``given_crtdl`` the one before enrichment. ``steps`` are whole, with details and warnings. ``rules`` is the
    anonymization file, ``kept`` what ``kept_identifiers`` says. ``changed`` are names of files that are not as they
    were checked, ``copies`` tables with the rows of a CSV that leaves beside them. ``last`` is the house's report with
    which data of this query left for this destination before, ``last_copy`` the recipient's of the same: each copy is
    compared with its like. ``decides`` says that a person is asked before the data leave, ``sent`` that they have left.
    ``files`` is the digest over what leaves; it is made here when it is not given. ``read`` is told of the bytes read.
    ``largest`` is the limit of a resource in bytes.
    ``measured`` is what was measured of the same files before, which are not read again.
    """

    job: str
    project: str
    base: Path
    leaving: Sequence[Path]
    imported: Sequence[Path] = ()
    step: int | None = None
    tables: bool = False
    copies: Set[Path] = frozenset()
    crtdl: Path | None = None
    given_crtdl: Path | None = None
    settings: Settings = field(default_factory=Settings)
    destination: Destination | None = None
    steps: Sequence[StepReport] = ()
    rules: Path | None = None
    kept: tuple[str, ...] = ()
    corrected: Sequence[Corrected] = ()
    changed: Sequence[str] = ()
    decisions: Sequence[Decided] = ()
    last: ReleaseReport | None = None
    last_copy: ReleaseReport | None = None
    asked_patients: int | None = None
    decides: bool = False
    sent: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    files: str = ""
    stop: Stop
    today: date
    made: str
    largest: int = LARGEST_RESOURCE
    read: Callable[[int], None] = _ignore
    measured: Measures | None = None


@dataclass(frozen=True)
class Made:
    """The house's copy, the recipient's, the figures of all files for ``files.csv``, and what was measured."""

    house: ReleaseReport
    recipient: ReleaseReport
    files: tuple[MeasuredFile, ...]
    measured: Measures | None = None


def make(asked: Asked) -> Made:
    """Measure and say it, twice. Raises ``StorageError`` (the spool cannot be written) and ``Stopped``."""
    imported, leaving = asked.measured or _measured(asked)
    query = read_query(asked.crtdl, asked.given_crtdl) if asked.crtdl is not None else None
    return said(asked, leaving, imported, query)


def said(asked: Asked, leaving: Measured, imported: Measured | None, query: Query | None) -> Made:
    """The two copies of what was measured."""
    facts = Facts(
        job=asked.job,
        project=asked.project,
        made=asked.made,
        step=asked.step,
        leaving=leaving,
        imported=imported,
        query=query,
        settings=asked.settings,
        destination=asked.destination,
        steps=tuple(asked.steps),
        rules=read_rules(asked.rules) if asked.rules is not None else None,
        kept=asked.kept,
        corrected=tuple(asked.corrected),
        changed=tuple(asked.changed),
        validated=tuple(_validated(asked, leaving, imported)),
        decisions=tuple(asked.decisions),
        last=asked.last,
        asked_patients=asked.asked_patients,
        outside_patients=_outside(asked),
        decides=asked.decides,
        sent=asked.sent,
        versions=asked.versions,
        files=asked.files or digest_of(leaving.files),
    )
    k = asked.settings.k
    copy = build(replace(facts, last=asked.last_copy), k=k, recipient=True)
    return Made(build(facts, k=k), copy, leaving.files, (imported, leaving))


def digest_of(files: Sequence[MeasuredFile]) -> str:
    """The digest over the sorted list of files, as ``Inventory.digest`` makes it."""
    entries = sorted((Entry(file.name, file.bytes, file.sha256) for file in files), key=lambda entry: entry.name)
    return Inventory(tuple(entries)).digest


def read_rules(path: Path) -> Rules | None:
    """What the report says of an anonymization file; ``None`` where it cannot be read. It may hold keys: no value of
    its parameters is kept."""
    try:
        content = path.read_bytes()
        document = yaml.safe_load(content)
    except (OSError, yaml.YAMLError, RecursionError, ValueError):
        return None
    rules = document.get("fhirPathRules") if isinstance(document, Mapping) else None
    named = [rule for rule in rules if isinstance(rule, Mapping)] if isinstance(rules, list) else []
    paths = tuple((str(rule.get("path", "")), str(rule.get("method", "")).lower()) for rule in named)
    return Rules(
        name=path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        paths=paths,
        removes=any(method == "remove" and "." not in where.partition("(")[0] for where, method in paths),
    )


def _validated(asked: Asked, leaving: Measured, imported: Measured | None) -> Iterator[Validated]:
    """The findings of each validation out of its ``summary.csv``."""
    for step in asked.steps:
        folder = step.details.get("reports")
        if not has_role(step.name, Role.VALIDATE) or step.state != "completed" or not isinstance(folder, str):
            continue
        with suppress(OSError, UnicodeDecodeError, csv.Error):
            yield Validated(step.position, _findings(asked.base / folder / FINDINGS_TABLE, leaving, imported))


def _outside(asked: Asked) -> int | None:
    """The patients of whom resources were left out for want of consent, out of the extraction server's list; ``None``
    where there is none, or where it is not about as many resources as the result says."""
    done = (one for one in reversed(asked.steps) if one.state == "completed")
    step = next((one for one in done if has_role(one.name, Role.EXTRACT)), None)
    reports = step.details.get("reports") if step is not None else None
    names = [one for one in reports if isinstance(one, str)] if isinstance(reports, list) else []
    name = next((one for one in names if "resource-exclusions" in one), None)
    if step is None or name is None:
        return None
    resources = 0
    patients: set[int] = set()
    try:
        with _text(asked.base / _EXTRACTION / Path(name).name, encoding="utf-8-sig") as file:
            for number, row in enumerate(csv.DictReader(file)):
                if not number % _ROWS:
                    asked.stop.check()
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
    return io.TextIOWrapper(io.BufferedReader(open_private(path)), encoding=encoding, newline="")


def _findings(summary: Path, leaving: Measured, imported: Measured | None) -> dict[FindingKind, dict[str, Cell]]:
    """The patients of each kind of findings by profile, where each line of each file is a patient's of its own."""
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
            profile = row.get("profile")  # an earlier version's rows end before it
            profile = UNRECORDED if profile is None else profile
            if profile not in by_profile and (len(by_profile) >= _MOST_PROFILES or bounds.crowded):
                profile = OTHERS
            cell = by_profile.get(profile)
            if cell is None:
                cell = by_profile[profile] = Cell()
            cell.add(of_file[at], bounds)
    return {what: {} if what in anybodys else by_profile for what, by_profile in found.items()}


def _a_patient_a_line(leaving: Measured, imported: Measured | None) -> dict[str, range]:
    """The files, by their last names, of which each line is a patient of its own, with numbers for their lines; none
    where a patient is in two of them."""
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


def _measured(asked: Asked) -> tuple[Measured | None, Measured]:
    """What came in and what leaves, one after the other: what is original is known when the second is read.

    The copies of different ``k`` are made of one measuring, so what is rare is what fewer than the house's ``k`` have.
    """
    spool = asked.base / SPOOL
    with storage_errors(spool):
        spool.mkdir(mode=0o700, exist_ok=True)
    settings = asked.settings
    measuring = partial(
        measure, base=asked.base, spool=spool, stop=asked.stop, k=settings.k, today=asked.today, read=asked.read,
        region_prefix=settings.region_prefix, largest=asked.largest,
    )  # fmt: skip
    if not asked.imported:
        return None, measuring(asked.leaving, copies=asked.copies)
    with Originals(spool, settings.k) as originals:
        imported = measuring(asked.imported, originals=originals, collect=True)
        return imported, measuring(asked.leaving, originals=originals, copies=asked.copies)
