"""Release reports as a job makes them: a rich one with every section, one without any finding, hostile ones, huge ones.

For tests of the page, of its short form and of its files, and for pictures.
"""

from __future__ import annotations

from typing import Any, Final

from tasks.release_report.measure.measured import MeasuredFile
from tasks.release_report.publication import HIDDEN, Count, count
from tasks.release_report.report.document import (
    Decided,
    Fact,
    ReleaseReport,
    ReportFinding,
    ReportSection,
    Table,
    Tiles,
    Value,
)

JOB: Final = "0b2c4a5e-1111-4222-8333-444455556666"
MAIDEN: Final = "Patient.extension(http://hl7.org/fhir/StructureDefinition/patient-mothersMaidenName).valueString"
FEW: Final = Count(word="fewer", number=5)
NONE: Final = Count(word="none")
SECTIONS: Final = (
    "leaving", "query", "flow", "consent", "types", "identifying", "apart", "completeness", "content", "time",
    "references", "validation", "unchecked", "warnings", "compared", "decision", "rules",
)  # fmt: skip
"""Names of sections 2 to 18."""

HOSTILE: Final = (
    "<script>alert(1)</script>",
    "<img src=http://evil.example/x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "</style><style>@import url(http://evil.example/x.css)</style>",
    "{{ 7*7 }}{% raw %}",
    "'; background:url(http://evil.example/y)",
    "![x](http://evil.example/z.png) [y](javascript:alert(1))",
    "\x1b[31mred\x07 \u202eevil\u2066 \x00 end",
    "https://evil.example/a<b>",
)


def about(patients: int) -> Count:
    """Return a number that may be printed."""
    return count(patients, 5)


def rich(**changes: Any) -> ReleaseReport:
    """67 patients with three reasons to stop, and something in each section."""
    findings = (
        ReportFinding(
            level="stop", code="original-left", about=MAIDEN, section=7, patients=Count(word="all"),
            values={"kind": "@kind-name"},
        ),
        ReportFinding(
            level="stop", code="identifying-left", about="Patient.telecom.value", section=7, patients=FEW,
            values={"kind": "@kind-telecom"},
        ),
        ReportFinding(level="stop", code="unencrypted", about="fhir.research.example", section=2),
        ReportFinding(level="look", code="terms-missing", section=3, values={"terms": "@term-legal_basis"}),
        ReportFinding(
            level="look", code="told-apart", section=8, patients=about(15), values={"by": "@by-birth-sex-region"},
        ),
        ReportFinding(
            level="look", code="free-text", about="DiagnosticReport.conclusion", section=7, patients=about(40),
            values={"kind": "@kind-text"},
        ),
        ReportFinding(level="note", code="removed-by-rules", section=9, values={"attributes": 4}),
        ReportFinding(level="note", code="validation-silent", section=13),
    )  # fmt: skip
    document: dict[str, Any] = {
        "job": JOB, "project": "heart-study", "step": 3, "made": "2026-11-23T05:40:12+00:00", "language": "en", "k": 5,
        "tiles": tiles(67, findings), "findings": findings, "sections": _sections(), "files": "5e" * 32,
        "seconds": 12.34,
    }  # fmt: skip
    return ReleaseReport(**(document | changes))


def tiles(patients: Count | int, findings: tuple[ReportFinding, ...]) -> Tiles:
    """Section 0."""
    levels = [one.level for one in findings]
    return Tiles(
        patients=patients, files=3, bytes=34_512_220, resources=48_211, destination="https://fhir.research.example/fhir",
        encrypted=False, stops=levels.count("stop"), looks=levels.count("look"), notes=levels.count("note"),
    )  # fmt: skip


def clean(**changes: Any) -> ReleaseReport:
    """Nothing to stop for, nothing to look at."""
    calm = tiles(67, ()).model_copy(update={"encrypted": True})
    return rich(findings=(), tiles=calm, **changes)


def decided(**changes: Any) -> ReleaseReport:
    """Return the rich report after a release despite its stops."""
    decision = Decided(
        approved=True, by="Anna Data", login="adata", where="ui", when="2026-11-23T06:12:00+00:00",
        comment="looked at with the study's lead", despite="the maiden names are made up: these are test patients",
        files="5e" * 32, report="7a" * 32,
    )  # fmt: skip
    return rich(decisions=(decision,), **changes)


def hostile(**changes: Any) -> ReleaseReport:
    """Each text of the document is what a page must never run, load, or lay out."""
    texts = HOSTILE
    findings = tuple(
        ReportFinding(level=level, code=code, about=text, section=7, patients=FEW, values={"kind": text})
        for level in ("stop", "look", "note") for text in texts for code in ("original-left", text)
    )  # fmt: skip
    sections = tuple(
        ReportSection(
            number=n, name=name, said=texts, facts=tuple(Fact(name=text, value=text) for text in texts),
            tables=tuple(Table(name=text, columns=(text, "patients"), rows=((text, text),)) for text in texts),
        ) for n, name in enumerate(SECTIONS, start=2)
    )  # fmt: skip
    decision = Decided(
        approved=False, by=texts[0], login=texts[1], where="cli", when=texts[0], comment=texts[3], despite=texts[2]
    )
    return rich(
        job=texts[0], project=texts[1], made=texts[0], findings=findings, sections=sections, files=texts[0],
        tiles=tiles(67, findings).model_copy(update={"destination": texts[1]}), decisions=(decision, decision),
        **changes,
    )  # fmt: skip


def huge(**changes: Any) -> ReleaseReport:
    """Very many findings and rows in each section, each text long."""
    rows, text = 300, "ä<&" * 100
    findings = tuple(
        ReportFinding(level=level, code="original-left", about=f"{n}{text}", section=7, patients=FEW)
        for level in ("stop", "look", "note") for n in range(rows)
    )  # fmt: skip
    row: tuple[Value, ...] = (text, about(40), text, 7, text)
    table = Table(name=text, columns=("path", "patients", "kind", "bytes", text), rows=(row,) * rows, bars="patients")
    facts = tuple(Fact(name=text, value=text) for _ in range(rows))
    sections = tuple(
        ReportSection(number=n, name=name, said=(text,) * rows, facts=facts, tables=(table,) * 8)
        for n, name in enumerate(SECTIONS, start=2)
    )
    return rich(findings=findings, tiles=tiles(67, findings), sections=sections, **changes)


def files(number: int = 3) -> tuple[MeasuredFile, ...]:
    """Return the files that would be sent."""
    return tuple(
        MeasuredFile(f"patients_{n}.ndjson.zst", 1000 + n, 9000 + n, 20 + n, 400 + n, 20 + n, f"{n:064x}")
        for n in range(number)
    )


def _sections() -> tuple[ReportSection, ...]:
    return tuple(_SECTION[name](n, name) for n, name in enumerate(SECTIONS, start=2))


def _sent(n: int, name: str) -> ReportSection:
    rows = tuple(
        (one.name, one.bytes * 9000, one.content * 9000, one.lines, one.resources, one.sha256) for one in files()
    )
    return ReportSection(
        number=n, name=name,
        facts=(
            Fact(name="mode", value="direct_resource_load"), Fact(name="host", value="fhir.research.example"),
            Fact(name="encrypted", value=False), Fact(name="authentication", value="@auth-basic"),
            Fact(name="first_time", value=True),
        ),
        tables=(Table(name="files", columns=("file", "stored", "content", "lines", "resources", "sha256"), rows=rows),),
    )  # fmt: skip


def _query(n: int, name: str) -> ReportSection:
    return ReportSection(
        number=n, name=name,
        facts=(
            Fact(name="title", value="Heart failure, first diagnosis"), Fact(name="query_sha256", value="c0" * 32),
            Fact(name="purpose", value="Care of heart failure, study 4711"),
            Fact(name="legal_basis", value="@not-given"),
            Fact(name="recipient", value="University Hospital Example"),
            Fact(name="retention", value="until the end of 2030"), Fact(name="contact", value="steward@example.org"),
            Fact(name="consent", value="@consent-checked"),
        ),
        tables=(
            Table(name="cohort", columns=("criterion", "term", "codes"), rows=(("@included", "Heart failure", "I50"),)),
            Table(
                name="attributes", columns=("attribute", "required", "filter"),
                rows=(
                    ("Patient.birthDate", True, None), ("Condition.code", True, "I50"),
                    ("Patient.extension", False, None),
                ),
            ),
        ),
    )  # fmt: skip


def _flow(n: int, name: str) -> ReportSection:
    rows = (
        ("asked-for", about(80), None),
        ("extracted", 67, None),
        ("in-import", 67, None),
        ("leaving", 67, "@as-imported"),
    )
    shown = tuple((f"@{step}", patients, reason) for step, patients, reason in rows)
    return ReportSection(
        number=n,
        name=name,
        tables=(Table(name="flow", columns=("step", "patients", "reason"), rows=shown, bars="patients"),),
    )


def _consent(n: int, name: str) -> ReportSection:
    return ReportSection(number=n, name=name, said=("consent-not-checked",))


def _types(n: int, name: str) -> ReportSection:
    rows = tuple(
        (kind, resources, about(patients))
        for kind, resources, patients in (
            ("Observation", 31_205, 67), ("Condition", 2_410, 65), ("Encounter", 4_105, 67),
            ("Immunization", 905, 60), ("Patient", 65, 67),
        )
    )  # fmt: skip
    table = Table(name="types", columns=("type", "resources", "patients"), rows=rows, bars="patients", withheld=True)
    return ReportSection(number=n, name=name, tables=(table,))


def _identifying(n: int, name: str) -> ReportSection:
    rows = (
        (MAIDEN, "@kind-name", Count(word="all"), Count(word="all"), Count(word="all"), "@stop"),
        ("Patient.telecom.value", "@kind-telecom", Count(word="all"), FEW, NONE, "@stop"),
        ("DiagnosticReport.conclusion", "@kind-text", about(40), about(40), NONE, "@look"),
    )
    columns = ("path", "kind", "patients_before", "patients", "original", "level")
    removed = (("Patient.photo", "@kind-photo", about(35)), ("Patient.name.family", "@kind-name", Count(word="all")))
    return ReportSection(
        number=n, name=name,
        facts=(
            Fact(name="rules_file", value="rules.yaml"), Fact(name="rules_sha256", value="ab" * 32),
            Fact(name="above_89", value=NONE), Fact(name="date_shift", value="@by-patient"),
        ),
        tables=(
            Table(name="left", columns=columns, rows=rows),
            Table(name="ids", columns=("form", "patients"), rows=(("@ids-hashed", Count(word="all")),)),
            Table(name="extensions", columns=("url", "patients"), rows=((MAIDEN[18:-13], Count(word="all")),)),
            Table(name="removed", columns=("path", "kind", "patients_before"), rows=removed, folded=True),
        ),
    )  # fmt: skip


def _apart(n: int, name: str) -> ReportSection:
    rows = (
        ("@as-it-is", about(15), about(20), about(20), about(10), "38 %", "100 %"),
        ("@years-5", about(5), about(15), about(20), about(25), "21 %", "100 %"),
        ("@years-10", NONE, about(10), about(15), about(40), "12 %", "50 %"),
        ("@without-region", NONE, FEW, about(10), about(50), HIDDEN, HIDDEN),
    )
    columns = ("classes", "alone", "with_few", "with_some", "with_many", "mean_risk", "highest_risk")
    return ReportSection(
        number=n, name=name, said=("outside-knowledge",),
        facts=(
            Fact(name="quasi_identifiers", value="Patient.birthDate, Patient.gender, Patient.address.postalCode"),
            Fact(name="region_prefix", value=2),
        ),
        tables=(Table(name="apart", columns=columns, rows=rows, withheld=True),),
    )  # fmt: skip


def _completeness(n: int, name: str) -> ReportSection:
    some: tuple[tuple[Value, ...], ...] = (
        ("Patients", "Patient.photo", "@optional", about(35), NONE, "@removed"),
        ("Conditions", "Condition.onsetDateTime", "@optional", about(60), about(45), "@thinned"),
    )
    whole = tuple(
        ("Observations", f"Observation.attribute{n}", "@required", Count(word="all"), Count(word="all"), "@filled")
        for n in range(12)
    )
    columns = ("group", "attribute", "required", "before", "after", "state")
    return ReportSection(
        number=n, name=name,
        tables=(
            Table(name="incomplete", columns=columns, rows=some),
            Table(name="complete", columns=columns, rows=whole, folded=True),
        ),
    )  # fmt: skip


def _content(n: int, name: str) -> ReportSection:
    rows = tuple(
        (code, display, about(patients), f"{100 * patients // 67} %")
        for code, display, patients in (
            ("I50.0", "Rechtsherzinsuffizienz", 40), ("I50.1", "Linksherzinsuffizienz", 25), ("@other", None, 10),
        )
    )  # fmt: skip
    codes = ("code", "display", "patients", "share")
    columns = ("code", "unit", "patients", "quartile_1", "median", "quartile_3")
    numbers = (("8867-4 Heart rate", "/min", about(65), "61", "72", "84"),)
    return ReportSection(
        number=n, name=name,
        tables=(
            Table(name="codes", columns=codes, rows=rows, bars="share", withheld=True),
            Table(name="numbers", columns=columns, rows=numbers),
        ),
    )  # fmt: skip


def _time(n: int, name: str) -> ReportSection:
    years = range(2008, 2026)
    rows = tuple(
        (str(year), about(year - 2000), about(2 * (year - 2000)), FEW if year < 2012 else about(20)) for year in years
    )
    return ReportSection(
        number=n,
        name=name,
        tables=(Table(name="over_time", columns=("year", "Condition", "Observation", "Procedure"), rows=rows),),
    )


def _references(n: int, name: str) -> ReportSection:
    facts = (
        Fact(name="patients_inside", value=Count(word="all")), Fact(name="patients_dangling", value=about(10)),
    )  # fmt: skip
    return ReportSection(number=n, name=name, facts=facts)


def _validation(n: int, name: str) -> ReportSection:
    return ReportSection(number=n, name=name, said=("validation-silent",))


def _unchecked(n: int, name: str) -> ReportSection:
    return ReportSection(
        number=n, name=name, said=("unread-text", "unread-pictures", "outside-knowledge", "rare-combinations")
    )


def _warnings(n: int, name: str) -> ReportSection:
    return ReportSection(
        number=n, name=name, tables=(Table(name="steps", columns=("step", "retries"), rows=(("pseudonymizer", 2),)),)
    )


def _compared(n: int, name: str) -> ReportSection:
    return ReportSection(number=n, name=name, said=("first-of-query",))


def _plain(n: int, name: str) -> ReportSection:
    return ReportSection(number=n, name=name)


_SECTION: Final = dict(
    zip(
        SECTIONS,
        (_sent, _query, _flow, _consent, _types, _identifying, _apart, _completeness, _content, _time, _references,
         _validation, _unchecked, _warnings, _compared, _plain, _plain),
        strict=True,
    )
)  # fmt: skip
