"""Signs that a source is incomplete: a search with missing pages, an OperationOutcome among the data, deletions.

A server that cannot give everything says so inside the data (document 3 §1): a searchset whose ``total`` is more than
its matches or that links to a ``next`` page, and an OperationOutcome in an entry. ``Entries`` counts what the entries
of one Bundle hold, ``SourceNotes`` keeps what was found in a file, and files of one import are added up: the pages of
a search may be several lines, or several files.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import msgspec

from tasks.shared.errors import DataError
from tasks.shared.fhir.reading import UNREADABLE
from tasks.shared.fhir.references import BundlePatient, Owned, read_owned

ERRORS: Final = frozenset({"error", "fatal"})
_SEVERITIES: Final = ("fatal", "error", "warning", "information")
_NO_MATCH: Final = frozenset({"include", "outcome"})
"""``search.mode`` of entries that ``Bundle.total`` does not count (FHIR R4, Bundle)."""


class UsualResource(Owned, gc=False):
    """Any resource but an OperationOutcome: no other one has ``issue``."""

    issue: None = None


class _UsualEntry(msgspec.Struct, gc=False):
    resource: UsualResource
    search: Any = None


class UsualLine(msgspec.Struct, rename="camel", gc=False):
    """Parts read of a usual line: each entry of a Bundle holds a resource, and nothing suggests that its source is
    incomplete. Costs a tenth more than skipping the entries."""

    resource_type: str = ""
    entry: tuple[_UsualEntry, ...] = ()
    total: None = None
    link: None = None
    issue: None = None

    @property
    def has_foreign(self) -> bool:
        """Return whether the line has one Patient and a resource that names another one."""
        patient = BundlePatient()
        patient.add([entry.resource for entry in self.entry])
        return patient.has_foreign


class _SourceEntry(msgspec.Struct, gc=False):
    resource: msgspec.Raw = msgspec.Raw()
    search: Any = None
    request: Any = None


class _SourceResource(msgspec.Struct, rename="camel", gc=False):
    resource_type: Any = None
    issue: Any = None


class SourceLine(msgspec.Struct, rename="camel", gc=False):
    """The members of a line that can tell something about its source; ``entry`` is not looked into."""

    resource_type: Any = None
    type: Any = None
    total: Any = None
    link: Any = None
    issue: Any = None
    entry: msgspec.Raw = msgspec.Raw()

    @property
    def continued(self) -> bool:
        """Return whether there is a next page."""
        links = self.link if isinstance(self.link, list) else ()
        return any(isinstance(link, dict) and link.get("relation") == "next" for link in links)


parse_usual_line: Final = msgspec.json.Decoder(UsualLine).decode
parse_line: Final = msgspec.json.Decoder(SourceLine).decode
_parse_usual: Final = msgspec.json.Decoder(list[_UsualEntry]).decode
_parse_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_parse_entry: Final = msgspec.json.Decoder(_SourceEntry).decode
_parse_resource: Final = msgspec.json.Decoder(_SourceResource).decode


class Entries:
    """Content of the entries of a Bundle: ``resources``, ``matches`` of a search, ``deletions``, and ``outcomes`` by
    severity. Entries can be added in several parts."""

    def __init__(self) -> None:
        self.resources = 0
        self.matches = 0
        self.deletions = 0
        self.outcomes: Counter[str] = Counter()
        self.patient = BundlePatient()

    def add(self, text: bytes | memoryview | msgspec.Raw) -> int:
        """Count the entries of a JSON list; how many there are. Raises what msgspec raises."""
        try:
            usual = _parse_usual(text)
        except msgspec.ValidationError:
            return self._add_each(bytes(text))
        self.resources += len(usual)
        self.patient.add([entry.resource for entry in usual])
        self.matches += sum(1 for entry in usual if entry.search is None or _matches(entry.search))
        return len(usual)

    def _add_each(self, text: bytes) -> int:
        entries = _parse_list(text)
        for raw in entries:
            try:
                entry = _parse_entry(raw)
                resource = _parse_resource(entry.resource) if entry.resource else None
            except msgspec.ValidationError:
                continue  # for the steps that read it
            self.matches += _matches(entry.search)
            if resource is not None:
                self.resources += 1
                self.patient.add([read_owned(entry.resource)])
            if resource is not None and resource.resource_type == "OperationOutcome":
                self.outcomes[severity(resource.issue)] += 1
            elif resource is None and isinstance(entry.request, dict) and entry.request.get("method") == "DELETE":
                self.deletions += 1
        return len(entries)


def names_foreign_patient(line: bytes) -> bool:
    """Return whether a Bundle holds one Patient and a resource in it names another one as its own.

    ``False`` for a text that is no Bundle, or cannot be read.
    """
    entries = Entries()
    try:
        entries.add(parse_line(line).entry)
    except UNREADABLE:
        return False
    return entries.patient.has_foreign


def _matches(search: Any) -> bool:
    return not (isinstance(search, dict) and search.get("mode") in _NO_MATCH)


def severity(issues: Any) -> str:
    """Return the worst severity of the issues of an OperationOutcome, ``other`` for none that FHIR knows."""
    found = {issue.get("severity") for issue in issues if isinstance(issue, dict)} if isinstance(issues, list) else ()
    return next((name for name in _SEVERITIES if name in found), "other")


class Pages(msgspec.Struct, omit_defaults=True):
    """Pages of searches with the same total: how many have a ``next`` one and how many have none, and their matches.
    ``line`` is that of the first."""

    line: int
    continued: int = 0
    last: int = 0
    matches: int = 0

    def add(self, other: Pages) -> None:
        """Add pages of another file."""
        self.continued += other.continued
        self.last += other.last
        self.matches += other.matches

    def missing(self, total: int) -> tuple[int, int]:
        """Return how many last pages are missing, and how many matches. A search has one last page."""
        return int(not self.last), max(0, total * max(self.last, 1) - self.matches)


class SourceNotes(msgspec.Struct, omit_defaults=True):
    """Findings about the source of a file: OperationOutcomes by severity, deletions, and pages of searches by their
    total."""

    outcomes: dict[str, int] = msgspec.field(default_factory=dict)
    deletions: int = 0
    pages: dict[str, Pages] = msgspec.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.outcomes or self.deletions or self.pages)

    def add_line(self, line: SourceLine, entries: Entries, number: int) -> None:
        """Add a line and what its entries hold."""
        if line.resource_type == "OperationOutcome":
            self._add_outcomes({severity(line.issue): 1})
        if line.resource_type != "Bundle":
            return
        self.deletions += entries.deletions
        self._add_outcomes(entries.outcomes)
        if line.type != "searchset":
            return
        total = line.total if type(line.total) is int else None
        if total is None or line.continued or entries.matches < total:
            pages = Pages(number, int(line.continued), int(not line.continued), entries.matches)
            self._add_pages("" if total is None else str(total), pages)

    def add(self, other: SourceNotes) -> None:
        """Add what was found in another file."""
        self.deletions += other.deletions
        self._add_outcomes(other.outcomes)
        for total, pages in other.pages.items():
            self._add_pages(total, pages)

    def _add_outcomes(self, outcomes: dict[str, int]) -> None:
        for name, count in outcomes.items():
            self.outcomes[name] = self.outcomes.get(name, 0) + count

    def _add_pages(self, total: str, pages: Pages) -> None:
        if total in self.pages:
            self.pages[total].add(pages)
        else:
            self.pages[total] = msgspec.structs.replace(pages)

    def incomplete(self) -> set[str]:
        """Return the totals of searches of which pages are missing; empty for a search without one.

        Servers give the total with each page, with the first one, or with those behind it: where there are pages that
        belong together, those without a total may be what is missing.
        """
        named = {total: pages for total, pages in self.pages.items() if total}
        others = self.pages.get("", Pages(0))
        missing = {total: found for total, pages in named.items() if any(found := pages.missing(int(total)))}
        if not others.continued and not any(named[total].continued for total in missing):
            return {*missing}
        last, matches = map(sum, zip((0, 0), *missing.values(), strict=True))
        ended = not others.continued or any(pages.last for pages in self.pages.values())
        complete = ended and last <= others.last and matches <= others.matches
        return set() if complete else {*missing, ""} & self.pages.keys()

    def warnings(self) -> list[str]:
        """Return warnings for a person, one sentence each."""
        found: list[str] = []
        if self.outcomes:
            shown = ", ".join(f"{name}: {count:,}" for name, count in sorted(self.outcomes.items()))
            found.append(
                f"the source holds OperationOutcomes ({shown}); a server writes them if it could not return everything"
            )
        if self.deletions:
            found.append(
                f"the source holds deletions ({self.deletions:,} entries); nothing is deleted in the job or "
                "at the destination"
            )
        return found


def missing_pages(where: str | None) -> DataError:
    """Return the error for a source without all pages of a search; ``where`` is ``file:line`` of one of them."""
    return DataError(
        "source-incomplete",
        "a search result is incomplete: its total is more than its entries, or its next page is missing",
        context=where,
        hint="import all pages of the search, then continue the job; if a part is intended, remove total and the next "
        "link from the Bundle",
    )
