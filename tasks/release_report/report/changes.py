"""Sections 7j and 7k: dates that did not move among others that did, birthdays, and contents that no rule changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tasks.release_report.measure.measured import Dates
from tasks.release_report.measure.spoken import Spoken, is_of_person
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import ReportFinding, Table
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.outline import finding, table


def findings(facts: ReportFacts, show: Disclosure, is_kept: Callable[[str], bool]) -> Iterator[ReportFinding]:
    """Yield what the comparison with ``import/`` found. ``is_kept`` says which paths the configuration keeps."""
    leaving = facts.leaving
    originals = {path for path, at in leaving.paths.items() if at.original > 0}  # stops already
    left = {path: patients for path, patients in leaving.births.items() if path not in originals}
    raw = {path: dates.raw for path, dates in leaving.dates.items() if dates.raw}
    for code, paths in {"dates-raw": raw, "birthday-left": left, "birthday-event": leaving.birth_events}.items():
        seen: set[str] = set()
        for path, patients in sorted(paths.items()):
            about, count = show.path(path), show.count(patients)
            if about in seen:  # R7 makes it like another one
                continue
            seen.add(about)
            if is_kept(path):
                yield finding("kept-on-purpose", about=about, patients=count, values={"kind": "@kind-value"})
            else:
                yield finding(code, about=about, patients=count)
    why = _why_unsure(facts)
    for about in _changed(facts, show):
        if why:
            yield finding("content-differs", about=about, values={"why": why})
        else:
            yield finding("content-changed", about=about)


def tables(facts: ReportFacts, show: Disclosure) -> Iterator[Table]:
    """Yield what became of the dates of each path that ``k`` patients have, and the paths whose contents changed."""
    dated = {path: dates for path, dates in sorted(facts.leaving.dates.items()) if dates.patients >= show.k}
    if any(dates.compared for dates in dated.values()):
        rows = [
            (show.path(path), show.count(dates.compared), show.count(dates.same), _state(dates, show.k))
            for path, dates in dated.items()
        ]
        yield table("date_moves", rows, folded=not any(dates.raw for dates in dated.values()))
    yield table("changed", ([about] for about in _changed(facts, show)))


def uncompared(facts: ReportFacts) -> Iterator[str]:
    """Yield the sentences on what could not be compared with ``import/``."""
    if facts.imported is None or facts.leaving.tables:
        return
    dates = facts.leaving.dates.values()
    if dates and not any(one.compared for one in dates):
        yield "dates-uncompared"
    if facts.leaving.uncompared:
        yield "content-uncompared"


def _state(dates: Dates, k: int) -> str:
    """Return the word for what became of a path's days."""
    if dates.raw:
        return "@days-raw"
    if dates.compared < k:
        return "@days-uncompared"
    return "@days-same" if dates.same == dates.compared else "@days-moved"


def _changed(facts: ReportFacts, show: Disclosure) -> list[str]:
    """Return the paths with other contents than in ``import/`` that no rule changes, each as it may be shown."""
    found, touched = facts.leaving.changed, _touched(facts)
    sure = facts.rules is not None and touched.complete
    paths = [path for path in found if not touched.of(path) and (sure or _is_clinical(facts, path))]
    return list(dict.fromkeys(show.path(path, found[path]) for path in paths))


def _touched(facts: ReportFacts) -> Spoken:
    """Return what the rules change."""
    return Spoken(path for path, method in (facts.rules.paths if facts.rules is not None else ()) if method != "keep")


def _is_clinical(facts: ReportFacts, path: str) -> bool:
    """Return whether a path has something that pseudonymization rarely changes, before and after: codes, numbers and
    texts, no dates, and nothing of a person. For rules that are not known."""
    at, then = facts.leaving.paths.get(path), facts.imported.paths.get(path) if facts.imported is not None else None
    known = at is not None and then is not None and at.kind in ("", "text", "concept-text")
    identifies = is_of_person(path) or ".identifier." in path
    return known and path not in facts.leaving.dates and not identifies


def _why_unsure(facts: ReportFacts) -> str:
    """Return the word for why a change may be meant; blank if the rules are known and nobody corrected a file."""
    if facts.corrected:
        return "@changed-by-person"
    if facts.rules is None:
        return "@changed-by-service"
    return "" if _touched(facts).complete else "@changed-by-unread-rule"
