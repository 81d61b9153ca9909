"""References inside a Bundle of the data that name an entry by its ``fullUrl`` (FHIR R4, "Resolving references in
Bundles")."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.data import DATA, DEMO_CRTDL
from tests.deployments.sandbox.extraction.conftest import (
    ICD,
    Start,
    attribute,
    ccdl,
    code,
    concept,
    criterion,
    crtdl,
    group,
    patient,
    resource,
    write,
)
from tests.deployments.sandbox.extraction.test_extraction import GONE

Resource = dict[str, Any]


def urn(name: str) -> str:
    return f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}"


def entry(url: str | None, content: Resource) -> Resource:
    return ({"fullUrl": url} if url else {}) | {"resource": content, "request": {"method": "POST", "url": "x"}}


def bundle(*entries: Resource) -> Resource:
    return {"resourceType": "Bundle", "type": "transaction", "entry": list(entries)}


def refers(name: str) -> Resource:
    return {"reference": urn(name)}


def case(name: str) -> Resource:
    """Return a Bundle as Synthea writes it: every reference is by ``urn:uuid``, also to later entries."""
    return bundle(
        entry(
            urn(f"condition {name}"),
            {
                "resourceType": "Condition",
                "id": f"c-{name}",
                "code": concept(ICD, "E11.90"),
                "subject": refers(f"patient {name}"),
                "encounter": refers(f"encounter {name}"),
            },
        ),
        entry(
            urn(f"encounter {name}"),
            {
                "resourceType": "Encounter",
                "id": f"e-{name}",
                "status": "finished",
                "class": code("class", "IMP"),
                "subject": refers(f"patient {name}"),
            },
        ),
        entry(
            urn(f"given {name}"),
            {
                "resourceType": "MedicationAdministration",
                "id": f"m-{name}",
                "subject": refers(f"patient {name}"),
                "medicationReference": refers(f"drug {name}"),
            },
        ),
        entry(urn(f"drug {name}"), resource("Medication", f"drug-{name}", code=concept("atc", "A"))),
        entry(urn(f"patient {name}"), patient(f"p-{name}", gender="female")),
    )


QUERY = crtdl(
    group("cond", "Condition", attribute("Condition.encounter", "enc", must=True)),
    group("enc", "Encounter", attribute("Encounter.status"), includeReferenceOnly=True),
    group("given", "MedicationAdministration", attribute("MedicationAdministration.medication[x]", "drug")),
    group("drug", "Medication", attribute("Medication.code"), includeReferenceOnly=True),
)


def renamed(line: str) -> str:
    """Return a Bundle of the demo data whose entries refer to each other by ``urn:uuid``."""
    document = json.loads(line)
    for item in document["entry"]:
        key = f"{item['resource']['resourceType']}/{item['resource']['id']}"
        item["fullUrl"] = urn(key)
    text = json.dumps(document, ensure_ascii=False)
    for item in document["entry"]:
        key = f"{item['resource']['resourceType']}/{item['resource']['id']}"
        text = text.replace(f'"reference": "{key}"', f'"reference": "{urn(key)}"')
    return text


@pytest.mark.slow
def test_the_demo_data_by_urn_gives_what_the_demo_data_gives(start: Start, tmp_path: Path) -> None:
    count = 0
    for path in DATA.glob("*.ndjson"):
        lines = [renamed(line) for line in path.read_text(encoding="utf-8").splitlines()]
        count += sum(line.count('"reference": "urn:uuid:') for line in lines)
        write(tmp_path / "data", *lines, name=path.name)
    assert count > 100
    query = json.loads(DEMO_CRTDL.read_bytes())
    plain, by_urn = start(DATA).extract(query), start(tmp_path / "data").extract(query)
    assert (by_urn.resources, by_urn.core) == (plain.resources, plain.core)
    assert by_urn.summary["Resource-Inclusions"] == plain.summary["Resource-Inclusions"]


@pytest.mark.parametrize("spaced", [False, True], ids=["compact", "spaced"])
def test_owners_links_and_the_core_file_are_found_and_the_result_names_type_and_id(
    start: Start, tmp_path: Path, spaced: bool
) -> None:
    separators = (" , ", " : ") if spaced else (",", ":")
    data = write(tmp_path / "data", *[json.dumps(case(name), separators=separators) for name in ("a", "b")])
    result = start(data).extract(QUERY)
    assert set(result.resources) == {
        f"{kind}-{name}"
        for name in ("a", "b")
        for kind in ("Patient/p", "Condition/c", "Encounter/e", "MedicationAdministration/m")
    }
    assert set(result.core) == {"Medication/drug-a", "Medication/drug-b"}
    for name in ("a", "b"):
        condition = result.resources[f"Condition/c-{name}"]
        assert condition["subject"] == {"reference": f"Patient/p-{name}"}
        assert condition["encounter"] == {"reference": f"Encounter/e-{name}"}
        given = result.resources[f"MedicationAdministration/m-{name}"]
        assert given["medicationReference"] == {"reference": f"Medication/drug-{name}"}
    assert "urn:uuid" not in "".join(result.texts.values())


def test_cohorts_follow_them(start: Start, tmp_path: Path) -> None:
    client = start(write(tmp_path / "data", case("a"), case("b")))
    diabetes = code(ICD, "E11.90")
    stationary = criterion("Fall", code("class", "IMP"))
    where = {"type": "reference", "attributeCode": code("x", "encounter"), "criteria": [stationary]}
    for wanted in (
        criterion("Diagnose", diabetes),
        criterion("Medikamentenverabreichung", code("atc", "A")),
        criterion("Diagnose", diabetes, attributeFilters=[where]),
    ):
        assert client.cohort(ccdl([wanted])) == ["p-a", "p-b"]


def test_one_url_means_in_each_bundle_the_entry_of_that_bundle(start: Start, tmp_path: Path) -> None:
    lines = [
        bundle(
            entry("urn:uuid:1", patient(key, gender="female")),
            entry(None, {"resourceType": "Condition", "id": f"c-{key}", "subject": {"reference": "urn:uuid:1"}}),
        )
        for key in ("a", "b")
    ]
    data = write(tmp_path / "data", lines[0], name="1.ndjson")
    write(data, lines[1], name="2.ndjson")  # at the same place of another file
    query = crtdl(group("g", "Condition", attribute("Condition.subject")))
    found = start(data).extract(query).resources
    assert {found[f"Condition/c-{key}"]["subject"]["reference"] for key in ("a", "b")} == {"Patient/a", "Patient/b"}


def test_an_entry_without_an_id_has_that_of_its_urn(start: Start, tmp_path: Path) -> None:
    nameless = {"resourceType": "Condition", "subject": refers("p"), "code": concept(ICD, "E11.90")}
    person = {"resourceType": "Patient", "gender": "female"}
    data = write(tmp_path / "data", bundle(entry(urn("c"), nameless), entry(urn("p"), person)))
    found = start(data).extract(crtdl(group("g", "Condition", attribute("Condition.code")))).resources
    key = urn("p").removeprefix("urn:uuid:")
    assert found[f"Condition/{urn('c').removeprefix('urn:uuid:')}"]["subject"] == {"reference": f"Patient/{key}"}


def test_absolute_urls_of_entries_are_followed_too(start: Start, tmp_path: Path) -> None:
    base = "https://hospital.example/fhir/"
    condition = {"resourceType": "Condition", "id": "c", "subject": {"reference": f"{base}Patient/p"}}
    data = write(
        tmp_path / "data",
        bundle(entry(f"{base}Patient/p", patient("p", gender="female")), entry(f"{base}Condition/c", condition)),
    )
    found = start(data).extract(crtdl(group("g", "Condition", attribute("Condition.code")))).resources
    assert found["Condition/c"]["subject"] == {"reference": "Patient/p"}


def test_a_url_that_no_entry_has_is_masked_and_so_is_one_outside_bundles(start: Start, tmp_path: Path) -> None:
    def condition(key: str) -> Resource:
        return resource("Condition", key, "p", encounter=refers("nowhere"))

    first = bundle(entry(urn("p"), patient("p", gender="female")), entry(urn("c"), condition("inside")))
    data = write(tmp_path / "data", first, condition("alone"))
    found = start(data).extract(crtdl(group("g", "Condition", attribute("Condition.encounter")))).resources
    assert found["Condition/inside"]["encounter"] == found["Condition/alone"]["encounter"] == GONE


def test_text_that_looks_like_a_url_of_an_entry_stays(start: Start, tmp_path: Path) -> None:
    note = {"resourceType": "Condition", "id": "c", "subject": refers("p"), "note": [{"text": f'"{urn("p")}"'}]}
    number = '"onsetAge":{"value":1.50}'
    text = json.dumps(bundle(entry(urn("p"), patient("p", gender="female")), entry(urn("c"), note)))
    data = write(tmp_path / "data", text.replace('"id": "c"', f'"id": "c", {number}'))
    result = start(data).extract(
        crtdl(group("g", "Condition", attribute("Condition.note"), attribute("Condition.onset[x]")))
    )
    assert result.resources["Condition/c"]["note"] == note["note"]
    assert number in "".join(result.texts.values())
