"""The findings: each a stop, a look or a note, about a path, a file or a host, never about a value (docs/review.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tasks.release_report.document import LEVELS, Level, ReportFinding, Value
from tasks.release_report.facts import JobFacts
from tasks.release_report.kinds import CODE_TEXT, DISPLAY, IMPERSONAL, STOPS, TEXT
from tasks.release_report.measured import IdentifyingPath, Measured
from tasks.release_report.numbers import Count, Tally, banded, counted
from tasks.release_report.patients import class_sizes
from tasks.shared.fhir.persons import Kind

TERMS: Final = ("purpose", "legal_basis", "recipient", "retention")
"""Keys of ``report`` that a person needs to decide whether the data may leave."""

ELEMENTS: Final = ("Patient.birthDate", "Patient.gender", "Patient.address.postalCode")
"""Elements that divide patients into classes, in the order of ``PatientClass``."""

LEVEL_OF: Final[Mapping[str, tuple[Level, int]]] = {
    "original": ("stop", 6),
    "left": ("stop", 6),
    "dates-stayed": ("stop", 6),
    "original-ids": ("stop", 6),
    "subject-lost": ("stop", 6),
    "unencrypted": ("stop", 3),
    "unread": ("stop", 3),
    "file-changed": ("stop", 3),
    "lines-differ": ("stop", 5),
    "patients-differ": ("stop", 5),
    "identifier": ("look", 6),
    "place": ("look", 6),
    "birth-day": ("look", 6),
    "display": ("look", 6),
    "free-text": ("look", 6),
    "code-text": ("look", 6),
    "above-89": ("look", 6),
    "dates-unshifted": ("look", 6),
    "few-alike": ("look", 7),
    "no-patients": ("look", 5),
    "unencrypted-private": ("look", 3),
    "terms-missing": ("look", 2),
    "consent-unchecked": ("look", 4),
    "warnings": ("look", 2),
    "kept": ("note", 6),
    "not-validated": ("note", 8),
}
"""Code of a finding → level and section. Findings of a level are sorted in this order."""

_CODES: Final = {
    Kind.IDENTIFIER: "identifier", Kind.PLACE: "place", Kind.BIRTH_DATE: "birth-day",
    DISPLAY: "display", TEXT: "free-text", CODE_TEXT: "code-text",
}  # fmt: skip
_KINDS: Final[tuple[str, ...]] = (Kind.NAME, Kind.IDENTIFIER, Kind.TELECOM, Kind.ADDRESS, Kind.PHOTO)
_SUBJECTS: Final = (".subject.reference", ".patient.reference", ".beneficiary.reference")


def findings(facts: JobFacts, measured: Measured) -> tuple[ReportFinding, ...]:
    """Return all findings, the most severe first. The same facts give the same ones."""
    found = [
        *_originals(facts, measured),
        *_left(facts, measured),
        *_of_the_pseudonymizer(facts, measured),
        *_files(facts, measured),
        *_counts(facts, measured),
        *_destination(facts),
        *_patients(facts, measured),
        *_steps(facts),
    ]
    if facts.inside:  # a later step processes the data before they are sent
        found = [one.model_copy(update={"level": "note"}) if one.section in (6, 7) else one for one in found]
    order = list(LEVEL_OF)
    return tuple(sorted(found, key=lambda one: (LEVELS.index(one.level), order.index(one.code))))


def finding(code: str, about: str = "", **more: object) -> ReportFinding:
    """Return a finding with its level and section."""
    level, section = LEVEL_OF[code]
    return ReportFinding(level=level, code=code, section=section, about=about, **more)


def code_of(one: IdentifyingPath, facts: JobFacts) -> str:
    """Return the code of the finding about a path; blank if the path is none."""
    if one.kind not in (TEXT, CODE_TEXT, DISPLAY) and is_kept(one.path, one.systems, facts):
        return "kept"
    if one.kind in STOPS:
        return "left"
    if one.kind == Kind.IDENTIFIER and facts.pseudonymized:
        return ""  # the pseudonymizer step compared them with the original ones
    return _CODES[one.kind]


def is_kept(path: str, systems: Iterable[str], facts: JobFacts) -> bool:
    """Return whether ``kept_identifiers`` has a path, one above it, or all systems of identifiers found there."""
    found = set(systems)
    if found and found <= facts.kept:
        return True
    return any(path == kept or path.startswith(f"{kept}.") for kept in facts.kept)


def shown_texts(texts: Mapping[str, Tally], k: int) -> list[str]:
    """Return the URLs and systems that can be printed: FHIR's own, and those that ``k`` or more patients have."""
    known = [text for text, tally in texts.items() if text.startswith("http://hl7.org/fhir/") or tally.patients >= k]
    return [text for text in known if text.isprintable() and 0 < len(text) <= 200]


def originals(facts: JobFacts) -> dict[tuple[str, str], tuple[int, bool]]:
    """Return (path, kind) of values that the pseudonymizer did not change → lines, and whether they are kept."""
    found: dict[tuple[str, str], tuple[int, bool]] = {}
    for key, lines in facts.tally("leaks").items():
        path, kind, *systems = key.split("|", 2)
        before, kept_before = found.get((path, kind), (0, True))
        kept = is_kept(path, filter(None, systems), facts)
        found[path, kind] = max(before, lines), kept_before and kept
    return found


def few_alike(facts: JobFacts, measured: Measured, years: int = 1) -> tuple[int, int, int]:
    """Return how many patients are alone in their class, in another class of fewer than k, and in a larger one."""
    by = [element in facts.config.report.quasi_identifiers for element in ELEMENTS]
    sizes = class_sizes(measured.classes, by, years=years)
    few = sum(patients for size, patients in sizes.items() if size < facts.config.report.k)
    return sizes[1], few - sizes[1], sizes.total() - few


def compared_by(facts: JobFacts, measured: Measured) -> list[str]:
    """Return the elements by which patients are compared: those of the configuration that some patient has."""
    there = [any(one) for one in zip(*measured.classes, strict=True)]
    asked = facts.config.report.quasi_identifiers
    return [element for element, is_there in zip(ELEMENTS, there, strict=False) if is_there and element in asked]


def _originals(facts: JobFacts, measured: Measured) -> Iterator[ReportFinding]:
    k = facts.config.report.k
    for (path, kind), (lines, kept) in sorted(originals(facts).items(), key=lambda item: (_rank(item[0][1]), item[0])):
        affects = _affects(measured, path, k) or banded(lines, k, unit="lines")
        yield finding("kept" if kept else "original", path, kind=kind, affects=affects)


def _rank(kind: str) -> int:
    return _KINDS.index(kind) if kind in _KINDS else len(_KINDS)


def _affects(measured: Measured, path: str, k: int) -> Count | None:
    found = next((one.found for one in measured.paths if one.path == path), None)
    return counted(found, k, measured.patients) if found is not None else None


def _left(facts: JobFacts, measured: Measured) -> Iterator[ReportFinding]:
    k, known = facts.config.report.k, {path for path, _ in originals(facts)}
    beside: list[IdentifyingPath] = []
    for one in sorted(measured.paths, key=lambda one: (_rank(one.kind), one.path)):
        code = code_of(one, facts)
        if code == "code-text":
            beside.append(one)
        elif code and one.path not in known:
            urls = ", ".join(shown_texts(one.urls, k)[:3])
            values: dict[str, Value] = {"urls": urls} if urls else {}
            affects = counted(one.found, k, measured.patients)
            yield finding(code, one.path, kind=one.kind, affects=affects, values=values)
    if beside:
        yield finding("code-text", kind=CODE_TEXT, values={"paths": len(beside)})


def _of_the_pseudonymizer(facts: JobFacts, measured: Measured) -> Iterator[ReportFinding]:
    k = facts.config.report.k

    def lines(number: int) -> Count:
        return banded(number, k, unit="lines")

    for path, number in sorted(facts.tally("dates that stayed").items()):
        code = "kept" if is_kept(path, (), facts) else "dates-stayed"
        yield finding(code, path, kind="date", affects=lines(number))
    for name, number in sorted(facts.tally("ids kept").items()):
        if name not in IMPERSONAL:
            yield finding("original-ids", f"{name}.id", affects=lines(number))
    lost = {path: n for path, n in facts.tally("references without type").items() if path.endswith(_SUBJECTS)}
    for path, number in sorted(lost.items()):
        yield finding("subject-lost", path, affects=lines(number))
    if not lost and measured.lost_subjects.lines:
        yield finding("subject-lost", affects=counted(measured.lost_subjects, k))
    dates = facts.tally("dates")
    if dates.get("unmoved") and not dates.get("moved"):
        yield finding("dates-unshifted")


def _files(facts: JobFacts, measured: Measured) -> Iterator[ReportFinding]:
    for name in _changed(facts, measured):
        yield finding("file-changed", name)
    for file in measured.files:
        if file.unread:
            yield finding("unread", file.name)


def _changed(facts: JobFacts, measured: Measured) -> list[str]:
    """Return the names of files that are not as their step left them."""
    if facts.left is None or facts.corrected:
        return []
    left = {file.name: (file.size, file.sha256) for file in facts.left.entries}
    found = {file.name: (file.size, file.sha256) for file in measured.files}
    return sorted(name for name in left | found if left.get(name) != found.get(name))


def _counts(facts: JobFacts, measured: Measured) -> Iterator[ReportFinding]:
    """Yield findings if the numbers of the steps and of the files differ. Corrected files may differ."""
    if facts.corrected:
        return
    folder = {file.name.partition("/")[0] for file in measured.files}
    wrote = [step for step in facts.steps if step.state == "completed" and {step.output} == folder]
    if wrote and wrote[-1].lines_out not in (None, measured.lines):
        yield finding("lines-differ", wrote[-1].name)
    if measured.tables:
        return
    of_steps = {number for word, number in facts.patients if word != "in-cohort"}
    leaving = measured.patient_resources
    if leaving and len(of_steps | {leaving}) > 1:
        yield finding("patients-differ")


def _destination(facts: JobFacts) -> Iterator[ReportFinding]:
    to, settings = facts.destination, facts.config.report
    if to is None:
        return
    if not to.encrypted:
        yield finding("unencrypted-private" if to.private else "unencrypted", to.host)
    missing = [name for name in TERMS if not getattr(settings, name)]
    if missing:
        yield finding("terms-missing", values={"terms": " ".join(f"@{name}" for name in missing)})


def _patients(facts: JobFacts, measured: Measured) -> Iterator[ReportFinding]:
    k = facts.config.report.k
    if measured.above_89.lines:
        yield finding("above-89", affects=counted(measured.above_89, k, measured.patients))
    if measured.tables:
        return
    if not measured.patients:
        yield finding("no-patients")
    alone, few, _ = few_alike(facts, measured)
    by, of = compared_by(facts, measured), measured.patients
    if by and alone + few:
        groups = {"alone": banded(alone, k, of), "few": banded(few, k, of)}
        yield finding("few-alike", values={"by": " ".join(f"@{name}" for name in by)} | groups)


def _steps(facts: JobFacts) -> Iterator[ReportFinding]:
    if facts.consent == "consent-unchecked":
        yield finding("consent-unchecked")
    warned = Counter({step.name: len(step.warnings) for step in facts.steps if step.warnings})
    for name, number in warned.items():
        yield finding("warnings", name, values={"warnings": number})
    if facts.done("validation") is None:
        yield finding("not-validated")
