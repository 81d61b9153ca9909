"""Release reports as a job makes them: a rich one with every section, a clean one, hostile ones, huge ones."""

from __future__ import annotations

from typing import Any, Final

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
from tasks.release_report.report.numbers import Count, banded
from tasks.release_report.report.outline import TABLES

JOB: Final = "0b2c4a5e-1111-4222-8333-444455556666"
MAIDEN: Final = "Patient.extension(http://hl7.org/fhir/StructureDefinition/patient-mothersMaidenName).valueString"
FEW: Final = Count(word="fewer", number=5)
SECTIONS: Final = (
    "leaving", "query", "flow", "consent", "types", "identifying", "apart", "unchecked", "decision"
)  # fmt: skip
"""Names of sections 2 to 10."""

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
    return banded(patients, 5)


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
        ReportFinding(
            level="note", code="identifier-replaced", about="Patient.identifier.value", section=7, patients=about(40),
            values={"kind": "@kind-identifier"},
        ),
    )  # fmt: skip
    document: dict[str, Any] = {
        "job": JOB, "project": "heart-study", "step": 3, "made": "2026-11-23T05:40:12+00:00", "language": "en", "k": 5,
        "tiles": tiles(67, findings), "findings": findings, "sections": _sections(), "files": "5e" * 32,
        "seconds": 12.34,
    }  # fmt: skip
    return ReleaseReport(**(document | changes))


def tiles(patients: int, findings: tuple[ReportFinding, ...]) -> Tiles:
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
        approved=True, by="Anna Data", where="ui", when="2026-11-23T06:12:00+00:00",
        comment="the maiden names are made up: these are test patients", files="5e" * 32,
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
    decision = Decided(approved=False, by=texts[0], where="command", when=texts[0], comment=texts[3])
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
    table = Table(name=text, columns=("path", "patients", "kind", "bytes", text), rows=(row,) * rows)
    facts = tuple(Fact(name=text, value=text) for _ in range(rows))
    sections = tuple(
        ReportSection(number=n, name=name, said=(text,) * rows, facts=facts, tables=(table,) * 8)
        for n, name in enumerate(SECTIONS, start=2)
    )
    return rich(findings=findings, tiles=tiles(67, findings), sections=sections, **changes)


def _sections() -> tuple[ReportSection, ...]:
    """Return every section, with each fact and table of the outline that a page shows in its own way."""
    every, few = Count(word="all"), FEW
    files = [(f"patients_{n}.ndjson.zst", 9_000_000, 81_000_000, 20, 400, f"{n:064x}") for n in range(3)]
    said: dict[str, tuple[str, ...]] = {
        "consent": ("consent-not-checked",),
        "unchecked": ("unread-text", "unread-pictures", "outside-knowledge", "rare-combinations"),
    }
    facts: dict[str, dict[str, Value]] = {
        "leaving": {"mode": "direct_resource_load", "host": "fhir.research.example", "encrypted": False},
        "query": {
            "title": "Heart failure, first diagnosis", "query_sha256": "c0" * 32, "purpose": "Care of heart failure",
            "legal_basis": "@not-given", "recipient": "University Hospital Example",
            "retention": "until the end of 2030", "contact": "steward@example.org", "consent": "@consent-checked",
        },
        "identifying": {"rules_file": "rules.yaml", "rules_sha256": "ab" * 32, "above_89": banded(0, 5)},
        "apart": {"quasi_identifiers": "Patient.birthDate, Patient.gender", "region_prefix": 2},
    }  # fmt: skip
    tables: dict[str, dict[str, list[tuple[Value, ...]]]] = {
        "leaving": {"files": list(files)},
        "query": {"cohort": [("@included", 1, "Diagnosis", "Heart failure", "", "I50")]},
        "flow": {"flow": [("@extracted", about(67), None), ("@leaving", 67, "@as-imported")]},
        "types": {
            "types": [("Observation", 31_205, every, 31_205, every, "@asked"), ("Patient", 9, few, 9, few, None)],
        },
        "identifying": {
            "left": [
                (MAIDEN, "@kind-name", every, every, every, "@stop"),
                ("Patient.telecom.value", "@kind-telecom", every, few, banded(0, 5), "@stop"),
                ("DiagnosticReport.conclusion", "@kind-text", about(40), about(40), banded(0, 5), "@look"),
            ],
            "ids": [("@ids-hashed", every)],
            "date_precision": [("Patient.birthDate", every, banded(0, 5), banded(0, 5), banded(0, 5))],
            "extensions": [(MAIDEN[18:-13], every)],
        },
        "apart": {"apart": [("@as-it-is", about(15), about(20), about(30)), ("@years-5", few, about(15), about(45))]},
    }  # fmt: skip
    return tuple(
        ReportSection(
            number=n, name=name, said=said.get(name, ()),
            facts=tuple(Fact(name=fact, value=value) for fact, value in facts.get(name, {}).items()),
            tables=tuple(
                Table(name=table, columns=TABLES[table].columns, rows=tuple(rows), folded=TABLES[table].folded)
                for table, rows in tables.get(name, {}).items()
            ),
        ) for n, name in enumerate(SECTIONS, start=2)
    )  # fmt: skip
