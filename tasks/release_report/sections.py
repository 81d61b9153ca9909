"""The sections 3 to 9 of the report, each out of facts, tables and sentences (docs/review.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tasks.release_report.dates import PRECISIONS
from tasks.release_report.document import ReportFinding, ReportSection, Table, Value
from tasks.release_report.facts import JobFacts
from tasks.release_report.findings import ELEMENTS, compared_by, few_alike, shown_texts
from tasks.release_report.kinds import CODE_TEXT
from tasks.release_report.measured import Measured
from tasks.release_report.numbers import Tally, banded, counted
from tasks.release_report.query import CONSENT
from tasks.release_report.scan import ID_FORMS
from tasks.shared.corrections import looked_at
from tasks.shared.files.data_directory import base_name, finished_files

Part = str | tuple[str, Value] | Table
"""A sentence by its name, a fact, or a table."""


def sections(
    facts: JobFacts, measured: Measured, found: Sequence[ReportFinding], checksum: str
) -> tuple[ReportSection, ...]:
    """Return all sections. ``checksum`` is the one over all files."""
    made: tuple[tuple[str, Iterable[Part]], ...] = (
        ("leaving", _leaving(facts, measured, checksum)),
        ("query", _query(facts)),
        ("flow", _flow(facts, measured)),
        ("identifying", _identifying(facts, measured, found)),
        ("apart", _apart(facts, measured)),
        ("unchecked", _unchecked(facts, measured)),
        ("decision", ()),  # who decided stands in ``decisions``
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
    return Table(name=name, columns=tuple(columns.split()), rows=tuple(rows))


def _leaving(facts: JobFacts, measured: Measured, checksum: str) -> Iterator[Part]:
    to, k = facts.destination, facts.config.report.k
    if to is None:
        yield "inside" if facts.inside else "nothing-sent"
    else:
        for name in ("mode", "host", "path", "bucket", "prefix", "project", "organization"):
            if value := getattr(to, name):
                yield name, value
        yield "connection", "@encrypted" if to.encrypted else "@not_encrypted"
    yield from (("files", len(measured.files)), ("bytes", measured.size), ("lines", measured.lines))
    yield from (("rows" if measured.tables else "resources", measured.resources), ("checksum", checksum))
    files = sorted(measured.files, key=lambda file: (-file.size, file.name))
    yield _table(
        "files", "file bytes lines resources", ((one.name, one.size, one.lines, one.resources) for one in files)
    )
    types = sorted(measured.types.items(), key=lambda item: (-item[1][0], item[0]))
    yield _table(
        "types", "type resources patients",
        ((name, resources, counted(tally, k, measured.patients)) for name, (resources, tally) in types),
    )  # fmt: skip


def _query(facts: JobFacts) -> Iterator[Part]:
    asked, summary = facts.query, facts.summary
    if asked is None:
        yield "no-query"
        return
    if facts.done("extractor") is None:
        yield "query-not-applied"
    yield from (("title", asked.title or None), ("query_sha256", asked.sha256), ("consent", f"@{facts.consent}"))
    if summary is not None and facts.consent == "consent-checked":
        yield "patients_without_consent", banded((summary.excluded or {}).get(CONSENT, 0), facts.config.report.k)
        yield "resources_without_consent", summary.without_consent
    lines = [("@included", line) for line in asked.included] + [("@excluded", line) for line in asked.excluded]
    yield _table("cohort", "criterion term", lines)
    groups = ((one.name, one.type, one.attributes, one.filters) for one in asked.groups)
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
            yield "not_corrected", ", ".join(left)
    if summary is not None:
        unasked = (CONSENT, 0) if facts.consent == "consent-not-asked" else None
        lost: list[tuple[Value, Value]] = [
            (f"@lost-{one[0].lower()}", "@consent-not-asked" if one == unasked else banded(one[1], k))
            for one in sorted((summary.excluded or {}).items())
        ]
        yield _table("lost", "reason patients", lost)
        yield "resources_without_must_have", summary.without_must_have


def _not_corrected(facts: JobFacts, measured: Measured) -> list[str]:
    """Return the files of the previous step that no corrected file replaces, so that nothing reads them."""
    folders = {folder for folder, _, _ in (file.name.partition("/") for file in measured.files)}
    corrected = {base_name(file.name.rpartition("/")[2]) for file in measured.files}
    before = [path for folder in folders for path in finished_files(looked_at(facts.directory / folder))]
    return [path.name for path in before if base_name(path.name) not in corrected]


def _identifying(facts: JobFacts, measured: Measured, found: Sequence[ReportFinding]) -> Iterator[Part]:
    k = facts.config.report.k
    if facts.rules is not None:
        yield from zip(("rules", "rules_sha256"), facts.rules, strict=True)
    else:
        yield "rules", "@service-rules" if facts.pseudonymized else "@no-pseudonymizer"
    if facts.kept:
        yield "kept_identifiers", ", ".join(sorted(facts.kept))
    dates = facts.tally("dates")
    for name, word in (("dates_moved", "moved"), ("dates_unmoved", "unmoved")):
        if lines := dates.get(word):
            yield name, banded(lines, k, sum(dates.values()), unit="lines")
    yield "above_89", counted(measured.above_89, k, measured.patients)
    texts = {one.path: shown_texts(one.urls, k)[:3] + shown_texts(one.systems, k)[:3] for one in measured.paths}
    rows: list[tuple[str, str, Value, Value]] = [
        (one.about, one.kind, one.affects, f"@{one.level}")
        for one in found if one.section == 6 and one.kind and one.about
    ]  # fmt: skip
    listed = {path for path, *_ in rows}
    beside = next((f"@{one.level}" for one in found if one.code == "code-text"), None)
    compared = None if measured.tables else "@compared"
    rows += [
        (one.path, one.kind, counted(one.found, k, measured.patients), beside if one.kind == CODE_TEXT else compared)
        for one in measured.paths if one.path not in listed
    ]  # fmt: skip
    if not rows:
        yield "nothing-left"
    yield _table(
        "left", "path kind patients names level",
        ((path, f"@kind-{kind}", affects, ", ".join(texts.get(path, ())) or None, level)
         for path, kind, affects, level in rows),
    )  # fmt: skip
    urls = shown_texts(measured.extensions, k)
    rest = [("@hidden-urls", hidden)] if (hidden := len(measured.extensions) - len(urls)) else []
    shown = ((url, counted(measured.extensions[url], k, measured.patients)) for url in sorted(urls))
    yield _table("extensions", "url patients", [*shown, *rest])
    forms = _bands("ids", measured.ids, ID_FORMS, facts, measured)
    kept = facts.tally("ids kept").get("Patient", 0)
    original = [("@ids-original", banded(kept, k, unit="lines"))] if kept else []
    yield _table("ids", "ids patients", [*original, *forms])
    yield _table("births", "births patients", _bands("births", measured.births, PRECISIONS, facts, measured))


def _bands(
    name: str, tallies: Mapping[str, Tally], words: Iterable[str], facts: JobFacts, measured: Measured
) -> list[tuple[Value, ...]]:
    """Return the patients by form or precision."""
    found = ((word, tallies[word]) for word in words if word in tallies)
    k = facts.config.report.k
    return [(f"@{name}-{word}", counted(tally, k, measured.patients)) for word, tally in found]


def _apart(facts: JobFacts, measured: Measured) -> Iterator[Part]:
    by, settings, of = compared_by(facts, measured), facts.config.report, measured.patients
    if measured.tables or not by:
        yield "not-of-tables" if measured.tables else "no-classes"
        return
    yield "quasi_identifiers", " ".join(f"@{name}" for name in by)
    if ELEMENTS[-1] in by:
        yield "region_prefix", settings.region_prefix
    rows: list[tuple[Value, ...]] = []
    for name, years in (("@years-1", 1), ("@years-5", 5)):
        sizes = few_alike(facts, measured, years)
        rows.append((name, *(banded(number, settings.k, of) for number in sizes)))
    yield _table("apart", "classes alone few many", rows)


def _unchecked(facts: JobFacts, measured: Measured) -> Iterator[Part]:
    """Yield the names of things that were not checked. There are always some that no program can check."""
    conditions = {
        "text-unread": True,
        "attachments-unread": True,
        "rare-combinations": True,
        "pseudonymized-elsewhere": not facts.pseudonymized,
        "dates-sampled": facts.dates_sampled,
        "corrected-uncompared": facts.corrected,
        "tables-by-column": measured.tables,
        "files-unread": any(file.unread for file in measured.files),
        "not-validated": facts.done("validation") is None,
        "consent-not-asked": facts.consent == "consent-not-asked",
        "consent-unchecked": facts.consent == "consent-unchecked",
        "origin-unknown": facts.done("extractor") is None,
    }
    yield from (name for name, holds in conditions.items() if holds)
