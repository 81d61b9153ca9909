"""Dates that did not move among others that did, and birthdays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tasks.release_report.measure.measured import Dates
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
            if about in seen:  # printed like another one
                continue
            seen.add(about)
            if is_kept(path):
                yield finding("kept-on-purpose", about=about, patients=count, values={"kind": "@kind-value"})
            else:
                yield finding(code, about=about, patients=count)


def tables(facts: ReportFacts, show: Disclosure) -> Iterator[Table]:
    """Yield what became of the dates of each path that ``k`` patients have."""
    dated = {path: dates for path, dates in sorted(facts.leaving.dates.items()) if dates.patients >= show.k}
    if any(dates.compared for dates in dated.values()):
        rows = [
            (show.path(path), show.count(dates.compared), show.count(dates.same), _state(dates, show.k))
            for path, dates in dated.items()
        ]
        yield table("date_moves", rows, folded=not any(dates.raw for dates in dated.values()))


def uncompared(facts: ReportFacts) -> Iterator[str]:
    """Yield the sentences on what could not be compared with ``import/``."""
    if facts.imported is None or facts.leaving.tables:
        return
    dates = facts.leaving.dates.values()
    if dates and not any(one.compared for one in dates):
        yield "dates-uncompared"


def _state(dates: Dates, k: int) -> str:
    """Return the word for what became of a path's days."""
    if dates.raw:
        return "@days-raw"
    if dates.compared < k:
        return "@days-uncompared"
    return "@days-same" if dates.same == dates.compared else "@days-moved"
