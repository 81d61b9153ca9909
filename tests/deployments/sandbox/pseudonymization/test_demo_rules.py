"""The rule file of the demo on all demo data, before and after the extraction."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import date
from typing import Any

import httpx
import pytest

from deployments.sandbox.common.json_text import decode_raw, encode
from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.data import ANONYMIZATION_RULES, DATA, DEMO_CRTDL
from deployments.sandbox.extraction.app import ExtractionOptions, extraction_service
from deployments.sandbox.fhir.app import fhir_service
from deployments.sandbox.pseudonymization.deidentify import DeIdentifier
from deployments.sandbox.pseudonymization.rulefile import read_rule_file
from tests.deployments.sandbox.extraction.conftest import ExtractionServerClient as Extraction
from tests.deployments.sandbox.pseudonymization.conftest import PseudonymizationClient, parameters

RULES = ANONYMIZATION_RULES.read_bytes()
GROUP = "https://www.medizininformatik-initiative.de/fhir/fdpg/NamingSystem/attribute_group"
LINES = [line for path in sorted(DATA.glob("*.ndjson")) for line in path.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def done() -> list[bytes]:
    """Return the bundled data after the rules."""
    engine = DeIdentifier(read_rule_file(RULES))
    return [encode(engine.process(decode_raw(line))) for line in LINES]


@pytest.fixture(scope="module")
def extracted() -> list[bytes]:
    """Return the demo query's extraction of the bundled data: patient Bundles with Provenances, and the core file."""
    with serve_in_thread(extraction_service(ExtractionOptions(data=DATA))) as served, Extraction(served.url) as client:
        texts = client.extract(DEMO_CRTDL.read_bytes()).texts
    return [line.encode() for text in texts.values() for line in text.splitlines()]


def strings(value: Any) -> Iterator[str]:
    """Yield all strings of a document except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def resources(lines: list[bytes]) -> list[dict[str, Any]]:
    return [entry["resource"] for line in lines for entry in json.loads(line)["entry"]]


def patients(lines: list[bytes]) -> list[dict[str, Any]]:
    return [found for found in resources(lines) if found["resourceType"] == "Patient"]


@pytest.mark.slow
def test_no_name_of_a_person_remains(done: list[bytes]) -> None:
    text = b"\n".join(done).decode()
    for patient in patients(LINES):
        (name,) = patient["name"]
        for canary in (*name["given"], name["family"], patient["birthDate"]):
            assert re.search(rf"\b{re.escape(canary)}\b", text) is None


def test_no_identifier_and_no_address_of_a_person_remains(done: list[bytes]) -> None:
    text = b"\n".join(done).decode()
    for canary in ("SANDBOX-0", "Straße der Erfindung", "Müsterstädt", "00000"):
        assert canary in b"\n".join(LINES).decode()
        assert canary not in text


def test_no_original_id_remains(done: list[bytes]) -> None:
    before = {found["id"] for found in resources(LINES)} | {json.loads(line)["id"] for line in LINES}
    for line in done:
        for text in strings(json.loads(line)):
            assert text not in before
            assert text.rpartition("/")[2] not in before


def test_every_resource_and_every_entry_is_still_there(done: list[bytes]) -> None:
    def counts(lines: list[bytes]) -> Counter[str]:
        return Counter(found["resourceType"] for found in resources(lines))

    assert counts(done) == counts(LINES)


def test_references_still_lead_to_their_resources(done: list[bytes]) -> None:
    there = {f"{found['resourceType']}/{found['id']}" for found in resources(done)}
    references = {
        text for line in done for text in strings(json.loads(line)) if re.fullmatch(r"[A-Z]\w+/[0-9a-f]{64}", text)
    }
    assert len(references) > 100
    assert references <= there


def test_the_record_number_is_a_pseudonym_of_its_own_for_each_person(done: list[bytes]) -> None:
    numbers = {found["identifier"][0]["value"] for found in patients(done)}
    assert len(numbers) == len(patients(LINES))
    assert all(number.startswith("patient-") for number in numbers)


def test_dates_move_by_the_same_days_for_one_patient(done: list[bytes]) -> None:
    def dates(lines: list[bytes]) -> list[list[date]]:
        return [
            [date.fromisoformat(found["recordedDate"]) for found in resources([line]) if "recordedDate" in found]
            for line in lines
        ]

    moves = [
        {after - before for before, after in zip(*both, strict=True)}
        for both in zip(dates(LINES), dates(done), strict=True)
    ]
    moves = [move for move in moves if move]
    assert all(len(move) == 1 for move in moves)
    assert len(set.union(*moves)) > 3


def test_codes_values_and_profiles_stay(done: list[bytes]) -> None:
    for before, after in zip(resources(LINES), resources(done), strict=True):
        for key in ("code", "valueQuantity", "status", "class"):
            assert after.get(key) == before.get(key)
        assert after.get("meta", {}).get("profile") == before.get("meta", {}).get("profile")


def test_provenances_still_route_every_resource_to_its_groups(extracted: list[bytes]) -> None:
    engine = DeIdentifier(read_rule_file(RULES))
    routed = 0
    for line in extracted:
        before, after = json.loads(line), engine.process(decode_raw(line))
        assert groups(before) == groups(after)
        routed += sum(len(where) for where in groups(after))
    assert routed > 100


def groups(bundle: dict[str, Any]) -> list[set[str]]:
    """Return the groups of each resource of a Bundle, by its Provenances."""
    found = [entry["resource"] for entry in bundle["entry"]]
    where: dict[str, set[str]] = {}
    for provenance in found:
        if provenance["resourceType"] != "Provenance":
            continue
        identifiers = [entity["what"]["identifier"] for entity in provenance["entity"]]
        names = {identifier["value"] for identifier in identifiers if identifier["system"] == GROUP}
        assert names
        for target in provenance["target"]:
            where.setdefault(target["reference"], set()).update(names)
    others = [item for item in found if item["resourceType"] != "Provenance"]
    assert where.keys() <= {f"{item['resourceType']}/{item['id']}" for item in others}
    return [where.get(f"{item['resourceType']}/{item['id']}", set()) for item in others]


def test_a_fhir_server_that_checks_references_takes_it(done: list[bytes]) -> None:
    with serve_in_thread(fhir_service()) as served, httpx.Client(trust_env=False, timeout=30) as client:
        for line in sorted(done, key=lambda line: b'"Patient"' in line):
            headers = {"content-type": "application/fhir+json"}
            assert client.post(f"{served.url}/fhir", content=line, headers=headers).status_code == 200
        counts = client.get(f"{served.url}/_sandbox/counts").json()
    assert counts == Counter(found["resourceType"] for found in resources(LINES))


def test_the_service_does_the_same_with_the_file_in_the_request(
    service: PseudonymizationClient, done: list[bytes]
) -> None:
    for line, expected in list(zip(LINES, done, strict=True))[:3]:
        assert service.deidentify(parameters(RULES, json.loads(line))).json() == json.loads(expected)
        assert service.deidentify(line).content == expected


def test_the_file_says_that_it_is_for_the_demo_only() -> None:
    assert "DEMO ONLY" in RULES.decode()
