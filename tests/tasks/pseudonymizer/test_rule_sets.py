"""What becomes of data under each kind of published rule file, through the command line.

A replica of the deployed service applies the rules: what is accepted, what is warned of, what is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import Commands, Ran
from tests.peers.data import CANARY, Json, identified, observation, of_patient, patient, provenance, write
from tests.peers.pseudonymizer_replica import Replica, Settings
from tests.peers.server import ScriptedServer, SeenRequest
from tests.tasks.pseudonymizer.rule_sets import (
    DATES,
    KEYS,
    OTHERS,
    RULE_SETS,
    V2_0203,
    hashed,
    redacted,
    rule,
    rule_file,
)

LINES: Final = 4
HYPHEN: Final = "https://fhir-server.example/fhir/"
SUBJECT: Final = "references have lost their type, so they lead nowhere: Observation.subject.reference (4 lines)"
ABSOLUTE: Final = "the service removes the type from absolute references (http://host/Patient/…)"
EMPTIED: Final = "resources came back with nothing but type, id and meta: "
TYPE_BACK: Final = "the rules remove Bundle.type; it is put back as it was"
STOPPED: Final = "error[residual-identifiers]: pseudonymizer: identifying values came back unchanged: "
KEPT: Final = "resources keep their original id"


def identifier(system: str, value: str, code: str | None = None) -> Json:
    kind = {} if code is None else {"type": {"coding": [{"system": V2_0203, "code": code}]}}
    return kind | {"system": f"https://clinic.example/{system}", "value": f"{CANARY}-{value}"}


def person(number: int, base: str = "", *, rich: bool = False) -> Json:
    """Return a patient's Bundle as the extraction server writes it; ``rich`` with elements that base files keep.

    A data-absent-reason is in it, and a contained resource.
    """
    more: Json = {"text": {"status": "generated", "div": f"<div>{CANARY}</div>"}} if rich else {}
    others = [identifier("visit", f"v{number}", "VN"), identifier("insurance", f"i{number}")] if rich else []
    absent = {"url": "http://hl7.org/fhir/StructureDefinition/data-absent-reason", "valueCode": "masked"}
    one = patient(
        f"patient-{number}", identifier=[identifier("mrn", f"m{number}", "MR"), *others],
        name=[{"family": f"Häfele-{CANARY}", "_given": [{"extension": [absent]}]}], gender="female",
        birthDate=f"1970-0{number}-13", address=[{"line": [f"{CANARY} street"], "city": "Bonn"}],
        contained=[{"resourceType": "Organization", "id": "org", "name": "Klinik"}],
        managingOrganization={"reference": "#org"}, maritalStatus={"text": "masked"}, **more,
    )  # fmt: skip
    day = f"2026-01-1{number}"
    other = observation(
        f"observation-{number}", status="final", code={"text": "Potassium"}, valueQuantity={"value": 4.5},
        effectiveDateTime=f"{day}T08:00:00+01:00", issued=f"{day}T09:00:00Z",
    )  # fmt: skip
    other["subject"] = {"reference": f"{base}Patient/patient-{number}"}
    stay = of_patient("Encounter", f"stay-{number}", f"patient-{number}", identifier=[identifier("visit", "e")])
    return identified(f"bundle-{number}", one, other, stay, provenance("group-1", one, other))


@dataclass(frozen=True)
class Row:
    """A rule set, in the service where it is ``own``, else sent; and what ``plan`` and ``start`` must say."""

    rules: str
    plan: tuple[int, str] = (0, "")
    start: tuple[int, str] = (0, "")
    warned: tuple[str, ...] = ()
    """Of both commands."""
    of_data: tuple[str, ...] = ()
    """Warnings of ``start`` alone."""
    own: bool = False
    rich: bool = False
    base: str = ""
    only: str = ""
    """The one resource type of the data."""
    restarts: bool = False
    """The service starts again when the first real line arrives."""
    settings: Json = field(default_factory=dict)
    keys: Json = field(default_factory=dict)


def refused(rules: str, reference: str, *words: str, **more: Any) -> Row:
    """Return a row that ``plan`` refuses, and ``start`` before any data is sent."""
    said = 2, f"error[{reference}]: pseudonymizer: {' '.join(words)}"
    return Row(rules, said, said, **more)


BROKEN: Final = "references no longer lead to the ids that the service makes"
NO_DOMAIN: Final = "the service cannot apply its rules to a synthetic resource (status "
CHANGE: Final = "the service gave a synthetic resource different ids, references or dates than before"

ROWS: Final = {
    "bundled default": refused("bundled default", "references-broken", BROKEN, own=True),
    "bundled HIPAA file": Row("bundled HIPAA file", warned=(ABSOLUTE,), rich=True),
    "DUP base 2026-06": Row("DUP base 2026-06", warned=(ABSOLUTE,)),
    "DUP base 2026-06, more data": Row(
        "DUP base 2026-06",
        start=(5, f"{STOPPED}Patient.identifier.value (4 lines), Patient.text.div (4 lines)"),
        warned=(ABSOLUTE,),
        rich=True,
    ),
    "DUP base 2026-09": Row("DUP base 2026-09", warned=(ABSOLUTE,)),
    "DUP base 2026-09, more data": Row(
        "DUP base 2026-09", start=(5, f"{STOPPED}Patient.text.div (4 lines)"), warned=(ABSOLUTE,), rich=True
    ),
    "Kalium360": Row("Kalium360", warned=(ABSOLUTE,)),
    "aether's test file": Row("aether's test file", warned=(ABSOLUTE,)),
    "aether's test file, more data": Row(
        "aether's test file", start=(5, f"{STOPPED}Patient.identifier.value (8 lines)"), warned=(ABSOLUTE,), rich=True
    ),
    "bzkf onco": Row(
        "bzkf onco",
        warned=(ABSOLUTE,),
        of_data=("dates stayed while others of the same line moved: Observation.issued (4 lines)",),
    ),
    "bzkf helm": Row("bzkf helm", start=(5, f"{STOPPED}Patient.birthDate (4 lines)")),
    "bzkf helm, kept on purpose": Row("bzkf helm", of_data=(KEPT,), keys={"kept_identifiers": ["Patient.birthDate"]}),
    "fts-next": Row("fts-next", of_data=(KEPT,)),
    "whitelist": Row("whitelist", warned=(ABSOLUTE, TYPE_BACK), rich=True),
    "dataportal redact-all": refused(
        "redact-all", "everything-removed", "the service removed everything from a synthetic resource", own=True
    ),
    "ids and references do not agree": refused("ids longer than references", "references-broken", BROKEN),
    "ids that are encrypted": refused("encrypted ids", "ids-invalid", "the service makes ids that are no FHIR ids"),
    "a domain that does not exist": refused(
        "DUP base 2026-09", "rules-refused", f"{NO_DOMAIN}500, issue codes: processing)",
        settings={"domains": frozenset({"case"})},
    ),
    "a domain that does not exist, in the newest": refused(
        "DUP base 2026-09", "rules-refused", f"{NO_DOMAIN}422, issue codes: processing)",
        settings={"domains": frozenset({"case"}), "newest": True},
    ),
    "a domain that only some data need": Row(
        "a domain for Encounters",
        start=(1, "error[pseudonymizer-failed]: pseudonymizer: the service cannot process this resource (status 500)"),
        warned=(ABSOLUTE,),
        settings={"domains": frozenset({"patient"})},
    ),
    "a domain that only some data need, in the newest": Row(
        "a domain for Encounters",
        start=(1, "error[pseudonymizer-failed]: pseudonymizer: the service cannot process this resource (status 422)"),
        warned=(ABSOLUTE,),
        settings={"domains": frozenset({"patient"}), "newest": True},
    ),
    "a domain for each type, which absolute references do not have": Row(
        "a domain for each type",
        warned=("the service refuses resources with absolute references",),
        of_data=(KEPT,),
        settings={"domains": frozenset({"Patient", "Observation", "Encounter", "Organization", "#"})},
    ),
    "a rule that the service does not know": refused("an unknown method", "rules-refused", f"{NO_DOMAIN}400"),
    "a service before 2.34": refused(
        "DUP base 2026-09", "pseudonymizer-too-old", "the service ignores the anonymization file: it is older than",
        settings={"ignores_config": True, "rules": OTHERS["without a key"]},
    ),
    "two replicas with different keys": refused(
        "without a key", "pseudonyms-change", CHANGE, own=True, settings={"replicas": 2}
    ),
    "a key that changes in mid-run": Row(
        "without a key",
        start=(1, f"error[pseudonyms-change]: pseudonymizer: {CHANGE}"),
        warned=(ABSOLUTE,),
        own=True,
        restarts=True,
    ),
    "absolute references": Row("Kalium360", warned=(ABSOLUTE,), of_data=(SUBJECT,), base=HYPHEN),
    "a type of which nothing is left": Row(
        "a whitelist that lacks a type",
        warned=(TYPE_BACK,),
        of_data=(f"{EMPTIED}Encounter (4 lines), Patient (4 lines), Provenance (4 lines)",),
    ),
    "a file of which nothing is left": Row(
        "a whitelist that lacks a type",
        start=(1, "error[everything-removed]: pseudonymizer: every resource of the file came back with nothing but"),
        warned=(TYPE_BACK,),
        only="Encounter",
    ),
    "names kept, escaped by the service": Row(
        "names kept",
        start=(5, f"{STOPPED}Patient.name.family (4 lines)"),
        warned=(ABSOLUTE,),
        settings={"escapes": True}
    ),
}  # fmt: skip


@dataclass
class Outcome:
    planned: Ran
    ran: Ran
    again: Ran | None
    sent: int
    """Requests with real data."""


def run_row(row: Row, sluice: Commands, directory: Path) -> Outcome:
    rules = (RULE_SETS | OTHERS)[row.rules]
    lines = [person(number, row.base, rich=row.rich) for number in range(1, LINES + 1)]
    if row.only:
        kept = [entry["resource"] for line in lines for entry in line["entry"]]
        lines = [one for one in kept if one["resourceType"] == row.only]
    write(directory / "data/a.ndjson", *lines)
    (directory / "rules.yaml").write_text(rules)
    service = Replica(Settings(**({"rules": rules} | row.settings) if row.own else row.settings))
    sent: list[SeenRequest] = []

    def real(seen: SeenRequest) -> None:
        if b"sluice-probe" not in seen.body:
            sent.append(seen)
            if row.restarts and len(sent) == 1:
                service.restart()

    with ScriptedServer(service, real) as server:
        keys = {"url": server.url, "max_concurrent_requests": 1} | row.keys
        if not row.own:
            keys["anonymization_config"] = "rules.yaml"
        config = {
            "services": {"local_import": {"dir": "data"}, "pseudonymizer": keys},
            "pipeline": {"enabled_steps": ["local_import", "pseudonymizer"]},
            "retry": {"max_attempts": 2, "initial_backoff_ms": 1, "max_backoff_ms": 2},
            "jobs_dir": "jobs",
        }
        (directory / "config.yaml").write_text(json.dumps(config))
        planned, ran = sluice("pipeline", "plan", "config.yaml"), sluice("pipeline", "start", "config.yaml")
        again = sluice("pipeline", "continue", "config.yaml", ran.job) if row.restarts else None
    return Outcome(planned, ran, again, len(sent))


def shown(directory: Path, *commands: Ran) -> list[str]:
    """Return values of persons in what the commands print, log and record, data and private answers aside."""
    texts = {str(number): ran.out + ran.err for number, ran in enumerate(commands)}
    for path in (directory / "jobs").rglob("*"):
        if path.is_file() and not {"import", "pseudonymized", "failed", ".prefect"} & set(path.parts):
            texts[str(path)] = path.read_bytes().decode(errors="replace")
    traces = (CANARY, "patient-1", "1970-01-13", "2026-01-11")
    return [f"{place}: {trace}" for place, text in texts.items() for trace in traces if trace in text]


@pytest.mark.parametrize("name", ROWS)
def test_a_rule_set_is_accepted_or_warned_of_or_refused(name: str, sluice: Commands, tmp_path: Path) -> None:
    row = ROWS[name]
    found = run_row(row, sluice, tmp_path)
    for ran, (code, words) in ((found.planned, row.plan), (found.ran, row.start)):
        assert (ran.code, words in ran.err) == (code, True), ran.err
        assert "hint: " in ran.err if code else "error" not in ran.err
        said = [line for line in ran.err.splitlines() if line.startswith("warning: ")]
        expected = [*row.warned, *(row.of_data if ran is found.ran else ())]
        assert [words for words in expected if not any(words in line for line in said)] == [], ran.err
        assert [line for line in said if not any(words in line for words in expected)] == [], ran.err
    assert (found.sent == 0) == (row.plan[0] != 0)
    assert shown(tmp_path, found.planned, found.ran, *filter(None, [found.again])) == []
    if found.again is not None:
        assert (found.again.code, found.sent) == (0, 2 * LINES)
        assert "1 finished files are done again" in found.again.err


UUID: Final = "0f8fad5b-d9cb-469f-a165-70867728950e"

FORMS: Final = {
    "relative": ("Patient/a", "reference", "Patient/H"),
    "with a version": ("Patient/a/_history/2", "reference", "Patient/H/_history/2"),
    "absolute": ("http://x.example/fhir/Patient/a", "reference", "http://x.example/fhir/Patient/H"),
    "absolute, hyphen": ("http://x-y.example/fhir/Patient/a", "reference", "H"),
    "absolute, underscore": ("http://x.example/a_b/Patient/a", "reference", "H"),
    "conditional": ("Patient?identifier=http://x-y|a", "reference", "Patient?identifier=http://x-y|H"),
    "contained": ("#a", "reference", "#H"),
    "uuid": (f"urn:uuid:{UUID}", "reference", "urn:uuid:H"),
    "oid": ("urn:oid:1.2.3", "reference", "urn:oid:H"),
    "no type of FHIR": ("Nothing/a", "reference", "H"),
    "fullUrl": ("http://x.example/fhir/Patient/a", "fullUrl", "http://x.example/fhir/Patient/H"),
    "fullUrl, uuid": (f"urn:uuid:{UUID}", "fullUrl", "H"),
    "request.url, conditional": ("Patient?identifier=http://x|a", "url", "Patient?identifier=http://x|H"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_replica_hashes_the_id_part_of_the_forms_that_the_service_knows(form: str) -> None:
    given, place, expected = FORMS[form]
    entry: Json = {"resource": observation("o"), "fullUrl": "x", "request": {"url": "x"}}
    {"reference": entry["resource"]["subject"], "url": entry["request"]}.get(place, entry)[place] = given
    answer = Replica(Settings(RULE_SETS["Kalium360"]))(
        SeenRequest("POST", "/fhir/$de-identify", {}, json.dumps({"resourceType": "Bundle", "entry": [entry]}).encode())
    )
    (made,) = json.loads(answer.body or b"")["entry"]
    found = {"reference": made["resource"]["subject"]["reference"], "url": made["request"]["url"]} | made
    assert re.sub("[0-9a-f]{32}", "H", found[place]) == expected


def test_the_replica_shifts_by_the_new_id_and_works_beside_primitives() -> None:
    """All in one: siblings, the offset after the rule of ids, encrypt, and elements that become empty."""
    rules = rule_file(
        *hashed("Resource.id", "nodesByName('reference')"), *redacted("Patient.birthDate", "Patient.photo"), *DATES,
        rule("Patient.identifier.value", "encrypt"), rule("Patient.gender", "substitute", replaceWith="other"),
    )  # fmt: skip
    absent = {"extension": [{"url": "http://absent", "valueCode": "masked"}]}
    one = patient(
        "p", gender="male", _birthDate=absent, photo=[{"title": "x"}], deceasedDateTime="2020-05-05T10:11:12+02:00",
        identifier=[{"value": "x" * 16}], managingOrganization={"_reference": absent},
    )  # fmt: skip
    seen = SeenRequest("POST", "/fhir/$de-identify", {}, json.dumps(one).encode())
    made = json.loads(Replica(Settings(rules))(seen).body or b"")
    assert {"birthDate", "_birthDate", "photo"} & made.keys() == set()
    inner = made["managingOrganization"]["_reference"]["extension"][0]
    assert (len(inner["url"]), len(inner["valueCode"])) == (64, 64)
    assert (made["gender"], len(made["identifier"][0]["value"])) == ("other", 96)
    offset = 0
    for byte in f"{made['id']}{KEYS['dateShiftKey']}".encode():
        offset = (offset * 131 + byte) % 101
    day = date(2020, 5, 5) + timedelta(offset - 50)
    assert made["deceasedDateTime"] == f"{day}T00:00:00+02:00"
