"""The sections 3 to 9 of the report, each out of facts, tables and sentences (docs/review.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from tasks.release_report.dates import PRECISIONS
from tasks.release_report.document import ReportSection, Table, Value
from tasks.release_report.facts import JobFacts
from tasks.release_report.findings import LEVEL_OF, can_show, code_of, few_alike, originals, shown_texts
from tasks.release_report.kinds import TYPES
from tasks.release_report.measured import Measured
from tasks.release_report.numbers import Tally, banded, counted
from tasks.release_report.paths import OTHERS
from tasks.release_report.scan import ID_FORMS
from tasks.shared.corrections import looked_at
from tasks.shared.files.data_directory import base_name, finished_files

MOST_ROWS: Final = 200
"""Of a table."""

_LONGEST: Final = 300
"""Characters of a text of the query."""

Part = str | tuple[str, Value] | Table
"""A sentence by its name, a fact, or a table."""


def sections(facts: JobFacts, measured: Measured, checksum: str) -> tuple[ReportSection, ...]:
    """Return all sections. ``checksum`` is the one over all files."""
    made: tuple[tuple[str, Iterable[Part]], ...] = (
        ("leaving", _leaving(facts, measured, checksum)),
        ("query", _query(facts)),
        ("flow", _flow(facts, measured)),
        ("identifying", _identifying(facts, measured)),
        ("apart", _apart(facts, measured)),
        ("unchecked", _unchecked(facts, measured)),
        ("decision", _decision(facts)),
    )
    return tuple(_section(number, name, parts) for number, (name, parts) in enumerate(made, start=3))


def _section(number: int, name: str, parts: Iterable[Part]) -> ReportSection:
    found = list(parts)
    return ReportSection(
        number=number,
        name=name,
        sentences=tuple(one for one in found if isinstance(one, str)),
        facts=dict(one for one in found if isinstance(one, tuple)),
        tables=tuple(one for one in found if isinstance(one, Table) and one.rows),
    )


def _table(name: str, columns: str, rows: Iterable[tuple[Value, ...]]) -> Table:
    found = list(rows)
    more = max(len(found) - MOST_ROWS, 0)
    return Table(name=name, columns=tuple(columns.split()), rows=tuple(found[:MOST_ROWS]), more=more)


def _leaving(facts: JobFacts, measured: Measured, checksum: str) -> Iterator[Part]:
    to, k = facts.destination, facts.config.report.k
    if to is None:
        yield "inside" if facts.inside else "nothing-sent"
    else:
        for name in ("mode", "host", "path", "bucket", "prefix", "project", "organization"):
            if value := getattr(to, name):
                yield name, value
        yield from (("encrypted", to.encrypted), ("authentication", f"@auth-{to.authentication}"))
    yield from (("files", len(measured.files)), ("bytes", measured.size), ("lines", measured.lines))
    yield from (("rows" if measured.tables else "resources", measured.resources), ("checksum", checksum))
    files = sorted(measured.files, key=lambda file: (-file.size, file.name))
    yield _table(
        "files", "file bytes lines resources", ((one.name, one.size, one.lines, one.resources) for one in files)
    )
    types = sorted(measured.types.items(), key=lambda item: (-item[1].resources, item[0]))
    yield _table(
        "types", "type resources patients",
        ((name if name in TYPES else "@other-type", of.resources, counted(of.found, k, measured.patients))
         for name, of in types),
    )  # fmt: skip


def _query(facts: JobFacts) -> Iterator[Part]:
    asked, summary = facts.query, facts.summary
    if asked is None:
        yield "no-query"
        return
    if facts.done("extractor") is None:
        yield "query-not-applied"
    yield from (("title", _cut(asked.title) or None), ("query_sha256", asked.sha256), ("consent", f"@{facts.consent}"))
    if summary is not None and facts.consent == "consent-checked":
        yield "patients_without_consent", banded((summary.excluded or {}).get("CONSENT", 0), facts.config.report.k)
        yield "resources_without_consent", summary.without_consent
    lines = [("@included", line) for line in asked.included] + [("@excluded", line) for line in asked.excluded]
    yield _table("cohort", "criterion term", ((word, _cut(line)) for word, line in lines))
    groups = ((_cut(one.name), one.type, one.attributes, _cut(one.filters)) for one in asked.groups)
    yield _table("groups", "group type attributes filter", groups)


def _flow(facts: JobFacts, measured: Measured) -> Iterator[Part]:
    k, summary = facts.config.report.k, facts.summary
    rows: list[tuple[Value, Value]] = [
        (f"@{name}", banded(number, k, measured.patients)) for name, number in facts.patients
    ]
    yield _table("flow", "step patients", [*rows, ("@leaving", measured.patients)])
    if facts.corrected:
        yield "corrected"
        if left := _not_corrected(facts, measured):
            yield "not_corrected", _cut(", ".join(left))
    if summary is not None:
        lost = [(f"@lost-{name.lower()}", banded(n, k)) for name, n in sorted((summary.excluded or {}).items())]
        yield _table("lost", "reason patients", lost)
        yield "resources_without_must_have", summary.without_must_have


def _not_corrected(facts: JobFacts, measured: Measured) -> list[str]:
    """Return the files of the previous step that no corrected file replaces, so that nothing reads them."""
    folders = {folder for folder, _, _ in (file.name.partition("/") for file in measured.files)}
    corrected = {base_name(file.name.rpartition("/")[2]) for file in measured.files}
    before = [path for folder in folders for path in finished_files(looked_at(facts.directory / folder))]
    return [path.name for path in before if base_name(path.name) not in corrected]


def _identifying(facts: JobFacts, measured: Measured) -> Iterator[Part]:
    k = facts.config.report.k
    if facts.rules is not None:
        yield from zip(("rules", "rules_sha256"), facts.rules, strict=True)
    else:
        yield "rules", "@service-rules" if facts.pseudonymized else "@no-pseudonymizer"
    if facts.kept:
        yield "kept_identifiers", _cut(", ".join(sorted(facts.kept)))
    yield "above_89", counted(measured.above_89, k, measured.patients)
    rows: list[tuple[Value, ...]] = []
    for one in measured.paths:
        code = code_of(one, facts)
        level = f"@{LEVEL_OF[code][0]}" if code else None
        texts = ", ".join(shown_texts(one.urls, k)[:3] + shown_texts(one.systems, k)[:3])
        rows.append((one.path, f"@kind-{one.kind}", counted(one.found, k, measured.patients), texts or None, level))
    if not rows:
        yield "nothing-left"
    yield _table("left", "path kind patients names level", sorted(rows, key=lambda row: _LEVEL_ORDER.index(row[4])))
    came_back = sorted(originals(facts).items())
    yield _table(
        "originals", "path kind lines level",
        ((path, f"@kind-{kind}", banded(lines, k), "@note" if kept else "@stop")
         for (path, kind), (lines, kept) in came_back),
    )  # fmt: skip
    stayed = sorted(facts.tally("dates that stayed").items())
    yield _table("dates", "path lines", ((path, banded(lines, k)) for path, lines in stayed))
    urls = [(url, tally) for url, tally in sorted(measured.extensions.items()) if can_show(url, tally, k)]
    hidden = [tally for url, tally in measured.extensions.items() if not can_show(url, tally, k)]
    extensions: list[tuple[Value, Value]] = [(url, counted(tally, k, measured.patients)) for url, tally in urls]
    yield _table("extensions", "url patients", [*extensions, *([("@hidden-urls", len(hidden))] if hidden else [])])
    forms = _bands("ids", measured.ids, ID_FORMS, facts, measured)
    kept = facts.tally("ids kept").get("Patient", 0)
    yield _table("ids", "ids patients", [*([("@ids-original", banded(kept, k))] if kept else []), *forms])
    yield _table("births", "births patients", _bands("births", measured.births, PRECISIONS, facts, measured))


_LEVEL_ORDER: Final[tuple[Value, ...]] = ("@stop", "@look", "@note", None)


def _bands(
    name: str, tallies: Mapping[str, Tally], words: Iterable[str], facts: JobFacts, measured: Measured
) -> list[tuple[Value, ...]]:
    """Return the patients by form or precision."""
    found = ((word, tallies[word]) for word in words if word in tallies)
    k = facts.config.report.k
    return [(f"@{name}-{word}", counted(tally, k, measured.patients)) for word, tally in found]


def _apart(facts: JobFacts, measured: Measured) -> Iterator[Part]:
    if measured.tables or not measured.classes:
        yield "not-of-tables" if measured.tables else "no-classes"
        return
    settings = facts.config.report
    yield "quasi_identifiers", " ".join(f"@{name}" for name in settings.quasi_identifiers)
    yield "region_prefix", settings.region_prefix
    of = measured.patients
    rows: list[tuple[Value, ...]] = []
    for name, years in (("@years-1", 1), ("@years-5", 5)):
        sizes = few_alike(facts, measured, years)
        rows.append((name, *(banded(number, settings.k, of) for number in sizes)))
    yield _table("apart", "classes alone few many", rows)


def _unchecked(facts: JobFacts, measured: Measured) -> Iterator[Part]:
    """Yield what was not checked. Never empty: some things no program checks."""
    conditions: Mapping[str, Callable[[], bool]] = {
        "text-unread": lambda: True,
        "attachments-unread": lambda: True,
        "rare-combinations": lambda: True,
        "pseudonymized-elsewhere": lambda: not facts.pseudonymized,
        "dates-sampled": lambda: facts.pseudonymized,
        "corrected-uncompared": lambda: facts.corrected,
        "tables-by-column": lambda: measured.tables,
        "too-many": lambda: measured.overfull,
        "files-unread": lambda: any(file.unread for file in measured.files),
        "not-validated": lambda: facts.done("validation") is None,
        "consent-not-asked": lambda: facts.consent == "consent-not-asked",
        "consent-unchecked": lambda: facts.consent == "consent-unchecked",
        "origin-unknown": lambda: facts.done("extractor") is None,
    }
    yield from (name for name, holds in conditions.items() if holds())


def _decision(facts: JobFacts) -> Iterator[Part]:
    """Yield what a stop does where nobody is asked. Who decided stands in ``decisions``."""
    if facts.destination is not None and not facts.asks:
        yield "nobody-asked"
        yield "on_stop", f"@on-stop-{facts.config.report.on_stop}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + OTHERS
