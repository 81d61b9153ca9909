"""References inside a Bundle of the data that name an entry by its ``fullUrl`` (FHIR R4, "Resolving references in
Bundles")."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.deployments.sandbox.extraction.conftest import (
    ICD,
    Start,
    attribute,
    code,
    concept,
    crtdl,
    group,
    patient,
    resource,
    write,
)

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
