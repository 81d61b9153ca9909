"""Section 1: findings, each a stop, a look or a note, in this order (document 5, section 1).

A finding is about a path, a file, a host or a type, never about a value. The same facts give the same findings in the
same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tasks.release_report.measure.kinds import LEFT
from tasks.release_report.measure.measured import Path
from tasks.release_report.report import changes
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import LEVELS, ReportFinding
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.outline import finding
from tasks.release_report.report.risk import BIRTH, REGION, SEX, below_k, class_sizes

PLACES: Final = ("Organization.", "Location.", "HealthcareService.")
"""Types whose towns and streets are no patient's, though a patient may live there."""

TERMS: Final = ("purpose", "legal_basis", "recipient", "retention")
"""Keys of ``report`` without which nobody can say whether the data may leave."""

TECHNICAL: Final = frozenset({"Provenance", "OperationOutcome", "Bundle"})
"""Types that come with every extraction, whoever asked for them."""

_KINDS: Final = (
    *("name", "identifier", "number", "display", "undefined", "address", "telecom", "photo", "attachment", "narrative"),
    *("device", "text"),
)


def findings(facts: ReportFacts, show: Disclosure) -> tuple[ReportFinding, ...]:
    """Return all findings, the stops first."""
    found = [
        *_identifying(facts, show),
        *changes.findings(facts, show, lambda path: is_kept(facts, path, "")),
        *_destination(facts),
        *_terms(facts),
        *_ids(facts, show),
        *_counts(facts, show),
        *_types(facts, show),
        *_files(facts, show),
        *_pseudonymization(facts, show),
        *(_apart(facts, show) if show.enough else ()),
        *_steps(facts),
    ]
    return tuple(sorted(found, key=lambda one: LEVELS.index(one.level)))


def kind_word(kind: str) -> str:
    """Return the name of the word for a kind of identifying data."""
    return f"@kind-{kind}" if kind else "@kind-value"


def is_kept(facts: ReportFacts, path: str, kind: str) -> bool:
    """Return whether ``kept_identifiers`` covers a path, a path above it, or all identifier systems of the data."""
    if any(path == kept or path.startswith((f"{kept}.", f"{kept}(")) for kept in facts.kept):
        return True
    systems = facts.leaving.identifier_systems
    return kind == "identifier" and bool(systems) and set(systems) <= set(facts.kept)


def code_of_path(facts: ReportFacts, path: str, at: Path) -> str | None:
    """Return the code of the finding that a path is; ``None`` if it is none (document 5, section 7).

    Which identifiers are original can be told only beside ``import/``: without it each is taken for one.
    """
    present = at.patients > 0 or at.nobody > 0
    original = at.original > 0 or at.original_nobody > 0
    if not present and not original:
        return None
    known = facts.imported is not None
    if (original or at.kind in (*LEFT, "identifier", "undefined")) and is_kept(facts, path, at.kind):
        return "kept-on-purpose"
    if original:
        # The town of a hospital is that of a patient, too.
        place = not at.kind and not at.original and path.startswith(PLACES)
        return "original-of-place" if place else "original-left"
    if at.kind in LEFT:
        return "identifying-left"
    if at.kind == "undefined":
        return "undefined-element"
    if at.kind == "identifier" and not known:
        return "identifier-unchecked"
    if at.kind == "address-part":
        return "address-part"
    if at.kind in ("display", "concept-text"):
        return "texts-beside-codes"
    if at.kind == "identifier":
        return "identifier-replaced"
    return "free-text" if at.kind else None


def _identifying(facts: ReportFacts, show: Disclosure) -> Iterator[ReportFinding]:
    found: list[tuple[int, int, ReportFinding]] = []
    beside: Counter[str] = Counter()
    for path, at in (*facts.leaving.paths.items(), *facts.leaving.undefined.items()):
        code = code_of_path(facts, path, at)
        if code is None:
            continue
        if code == "texts-beside-codes":
            beside[at.kind] += 1
            continue
        patients = at.original if code == "original-left" else at.patients
        one = finding(
            code,
            about=show.path(path, at.patients),
            patients=show.count(patients) if patients else None,
            values={"kind": kind_word(at.kind)},
        )
        rank = _KINDS.index(at.kind) if at.kind in _KINDS else len(_KINDS)
        found.append((0 if code == "original-left" else 1, rank, one))
    found.sort(key=lambda each: (each[0], each[1], each[2].about))
    yield from _one_each([one for _, _, one in found])
    for kind, paths in sorted(beside.items()):
        yield finding("texts-beside-codes", values={"kind": kind_word(kind), "paths": paths})


def _one_each(found: list[ReportFinding]) -> Iterator[ReportFinding]:
    """Yield one finding for all paths of a kind that are printed alike."""
    seen: set[tuple[str, str, str]] = set()
    for one in found:
        what = (one.code, one.about, str(one.values.get("kind")))
        if what not in seen:
            seen.add(what)
            yield one


def _destination(facts: ReportFacts) -> Iterator[ReportFinding]:
    to = facts.destination
    if to is None:
        return
    if to.encrypted is False:
        if to.private:
            yield finding("unencrypted-private", about=to.host)
        else:
            yield finding("unencrypted", about=to.host)


def _ids(facts: ReportFacts, show: Disclosure) -> Iterator[ReportFinding]:
    ids = facts.leaving.ids
    if ids.kinds.get("original", 0):
        yield finding("original-ids", patients=show.count(ids.kinds["original"]))
    elif ids.referred:
        yield finding("original-ids-referred", patients=show.count(ids.referred))


def _counts(facts: ReportFacts, show: Disclosure) -> Iterator[ReportFinding]:
    """Yield findings where the reports of the steps and the measurements differ (section 4)."""
    measured = facts.leaving
    if facts.imported is not None and not measured.tables:
        before, after = facts.imported.patients, measured.patients
        if after > before:
            yield finding("patients-gained", patients=show.count(after - before))
        elif after < before and not _may_lose(facts):
            yield finding("patients-lost", patients=show.before(before - after))
        elif after < before:
            yield finding("patients-fewer", patients=show.before(before - after))
    if measured.patients == 0 and not measured.tables:
        yield finding("no-patients")
    wrote = [step for step in facts.steps if step.state == "completed" and step.output is not None]
    if wrote and not measured.unread:
        last = wrote[-1]
        lines = sum(file.lines for file in measured.files)
        of_it = {file.name.partition("/")[0] for file in measured.files if "/" in file.name} <= {last.output}
        if last.lines_out is not None and of_it and lines != last.lines_out:
            yield finding("lines-differ", about=last.name)
    final = next((n for step in facts.steps if isinstance(n := step.details.get("final_patients"), int)), None)
    if final is not None and facts.imported is not None and final != facts.imported.patients:
        yield finding("server-counts-differ")


def _terms(facts: ReportFacts) -> Iterator[ReportFinding]:
    """Yield what a person must ask for where the configuration and the job leave it open."""
    missing = [name for name in TERMS if not getattr(facts.settings, name)]
    if missing and facts.destination is not None:
        yield finding("terms-missing", values={"terms": " ".join(f"@term-{name}" for name in missing)})
    if facts.query_not_applied:
        yield finding("query-not-applied")
    if facts.consent == "@consent-unchecked":
        yield finding("consent-unchecked")


def _may_lose(facts: ReportFacts) -> bool:
    """Return whether patients may be fewer than in ``import/``: by a removing rule or a correction."""
    return bool(facts.corrected) or (facts.rules is not None and facts.rules.removes)


def _types(facts: ReportFacts, show: Disclosure) -> Iterator[ReportFinding]:
    if facts.query is None or facts.leaving.tables:
        return
    for name, counted in sorted(facts.leaving.types.items()):
        if name in facts.query.types or name in TECHNICAL or not counted.resources:
            continue
        patients = show.count(counted.patients) if counted.patients else None
        yield finding("type-not-asked", about=show.type(name), patients=patients)


def _files(facts: ReportFacts, show: Disclosure) -> Iterator[ReportFinding]:
    for about in sorted(set(facts.changed)):
        yield finding("file-changed", about=about)
    for about in sorted(set(facts.leaving.unread)):
        yield finding("file-unread", about=about)
    if facts.imported is not None and facts.imported.unread:
        yield finding("import-unread")


def _pseudonymization(facts: ReportFacts, show: Disclosure) -> Iterator[ReportFinding]:
    measured = facts.leaving
    if facts.step_with("pseudonymizer") is None:
        yield finding("not-pseudonymized")
    if measured.above_89:
        yield finding("above-89", patients=show.count(measured.above_89))
    if measured.shift == "none":
        yield finding("dates-not-shifted")
    elif measured.shift == "one" and measured.patients > 1:
        yield finding("one-shift")
    for path in sorted(_paths_revealing_shift(facts)):
        yield finding("shift-told", about=show.path(path))


def _paths_revealing_shift(facts: ReportFacts) -> Iterator[str]:
    """Yield paths whose dates all had one month at the import, but not after a shift per patient.

    The difference, for example of the time of an extraction, reveals each patient's shift.
    """
    if facts.imported is None or facts.leaving.shift != "own":
        return
    for path, before in facts.imported.dates.items():
        after = facts.leaving.dates.get(path)
        if after is not None and after.months.keys() - before.months.keys() and len(before.months) == 1:
            (patients,) = before.months.values()
            if patients > 1:
                yield path


def _apart(facts: ReportFacts, show: Disclosure) -> Iterator[ReportFinding]:
    few = below_k(class_sizes(facts), show.k)
    if few:
        yield finding("told-apart", patients=show.count(few), values={"by": _by(facts)})


def _by(facts: ReportFacts) -> str:
    """Return the name of the word for the elements in ``report.quasi_identifiers``."""
    counted = facts.settings.quasi_identifiers
    return "@by-" + "-".join(word for element, word in _ELEMENTS.items() if element in counted)


_ELEMENTS: Final = {BIRTH: "birth", SEX: "sex", REGION: "region"}


def _steps(facts: ReportFacts) -> Iterator[ReportFinding]:
    warned = sum(len(step.warnings) for step in facts.steps)
    if warned:
        yield finding("warnings", values={"warnings": warned})
