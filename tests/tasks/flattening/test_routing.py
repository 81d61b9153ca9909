"""Routing of resources to groups (document 3 §5, "Routing")."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from tasks.flattening.flattening import FlatteningBounds
from tasks.flattening.routing import grouping, key_of
from tasks.shared.errors import DataError
from tests.peers.data import PROFILE, as_line, of_patient, provenance, resource
from tests.peers.data import identified as bundle
from tests.peers.flattening import OBSERVATIONS, PATIENTS, FakeFlattening, FlatteningJob, patient_line, view


def ids(job: FlatteningJob, group: str) -> list[str]:
    return [line.split(",")[0] for line in job.tables()[f"{group}.csv"].decode().splitlines()[1:]]


MEDICATION = view("g-med", "Medication", {"id": "id"}, name="Medikation")


def test_resources_without_provenance_are_counted_by_type_and_the_others_routed(
    job: FlatteningJob, service: FakeFlattening
) -> None:
    one, two = of_patient("Observation", "one", "p"), of_patient("Observation", "two", "p")
    job.write("a.ndjson", bundle("b", one, two, resource("Encounter", "e"), provenance("g-obs", one)))
    result = job.run(service.url)
    assert ids(job, "Labor") == ["one"]
    assert result.resources_in == 3
    assert result.details["unrouted"] == {"Encounter": 1, "Observation": 1}
    assert result.warnings == ("resources that belong to no group: Encounter 1, Observation 1",)
    assert result.details["routed_by"] == "Provenance"


def test_a_resource_named_by_several_groups_goes_to_each_once(tmp_path: Path, service: FakeFlattening) -> None:
    job = FlatteningJob(tmp_path, [PATIENTS, OBSERVATIONS, view("g-2", "Observation", {"id": "id"}, name="Zwei")])
    one = of_patient("Observation", "one", "p")
    named = [provenance("g-obs", one, one), provenance("g-obs", one), provenance("g-2", one)]
    job.write("a.ndjson", bundle("b", one, *named))
    job.run(service.url)
    assert (ids(job, "Labor"), ids(job, "Zwei")) == (["one"], ["one"])


def test_a_resource_that_occurs_several_times_has_a_row_each_time(tmp_path: Path, service: FakeFlattening) -> None:
    job = FlatteningJob(tmp_path, [PATIENTS])
    job.write("a.ndjson", *[resource("Patient", "p", gender=gender) for gender in ("female", "male")])
    job.run(service.url)
    assert job.tables()["Patient.csv"] == b"id,gender\np,female\np,male\n"


@pytest.mark.parametrize("name", ["core.ndjson", "CORE.ndjson"])
@pytest.mark.parametrize("long", [True, False])
def test_core_is_first_and_its_provenances_serve_all_lines(
    tmp_path: Path, service: FakeFlattening, name: str, long: bool
) -> None:
    job = FlatteningJob(tmp_path, [PATIENTS, MEDICATION])
    medications = [resource("Medication", f"m{n}") for n in range(4)]
    patient = resource("Patient", "p")
    job.write("a.ndjson", bundle("b", patient, *medications[2:], provenance("g-pat", patient)))
    job.write(name, bundle("c1", *medications[:2]), bundle("c2", provenance("g-med", *medications[:3])), medications[0])
    result = job.run(service.url, bounds=FlatteningBounds(line=300 if long else 1 << 20))
    assert ids(job, "Medikation") == ["m0", "m1", "m0", "m2"]
    assert ids(job, "Patient") == ["p"]
    assert result.details["unrouted"] == {"Medication": 1}
    assert result.details["routed_by"] == "Provenance"


def test_references_may_be_absolute_or_of_a_version(job: FlatteningJob, service: FakeFlattening) -> None:
    values = [of_patient("Observation", f"o{n}", "p") for n in range(4)]
    targets = [
        "Observation/o0", "http://x.example/fhir/Observation/o1", "Observation/o2/_history/3",
        "https://x.example/a/fhir/Observation/o3/_history/1",
    ]  # fmt: skip
    job.write("a.ndjson", bundle("b", *values, provenance("g-obs", *targets)))
    job.run(service.url)
    assert ids(job, "Labor") == ["o0", "o1", "o2", "o3"]


@pytest.mark.parametrize("reference", [None, 3, "", "o1", "#contained", {}])
def test_what_is_no_literal_reference_names_nothing(reference: Any) -> None:
    assert key_of(reference) in (None, reference)
    assert "/" not in (key_of(reference) or "")


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b'{"entity":3}', b'{"entity":[{"what":3}]}', b'{"entity":[{"what":{"identifier":[]}}]}',
     b'{"target":[{"reference":"A/b"}]}', b'{"entity":[{"what":{"identifier":{"system":3,"value":"x"}}}]}',
     b'{"entity":[{"what":{"identifier":{"system":"x/other","value":"x"}}}]}'],
)  # fmt: skip
def test_a_provenance_about_something_else_says_nothing_of_groups(text: bytes) -> None:
    assert grouping(text) is None


def test_a_provenance_about_something_else_is_a_resource_like_others(tmp_path: Path, service: FakeFlattening) -> None:
    job = FlatteningJob(tmp_path, [PATIENTS, view("g-prov", "Provenance", {"id": "id"}, name="Herkunft")])
    other = resource("Provenance", "x", target=[{"reference": "Patient/p"}])
    one = resource("Patient", "p")
    job.write("a.ndjson", bundle("b", one, other, provenance("g-pat", one), provenance("g-prov", other)))
    result = job.run(service.url)
    assert ids(job, "Herkunft") == ["x"]
    assert result.resources_in == 2


def test_groups_without_a_view_take_their_resources_with_them(tmp_path: Path, service: FakeFlattening) -> None:
    job = FlatteningJob(tmp_path, [PATIENTS], others=[("g-enc", "Encounter")])
    one, two = resource("Patient", "p"), of_patient("Encounter", "e", "p")
    job.write("a.ndjson", bundle("b", one, two, provenance("g-pat", one), provenance("g-enc", two)))
    result = job.run(service.url)
    assert result.details["left_out"] == {"Encounter": 1}
    assert result.details["unrouted"] == {}
    assert result.warnings == ("resources that belong only to groups that get no CSV: Encounter 1",)


def test_a_view_gets_resources_of_its_own_type_only(job: FlatteningJob, service: FakeFlattening) -> None:
    one, two = of_patient("Observation", "o", "p"), of_patient("Condition", "c", "p")
    job.write("a.ndjson", bundle("b", one, two, provenance("g-obs", one, two)))
    result = job.run(service.url)
    assert result.details["unrouted"] == {"Condition": 1}
    assert [request.type for request in service.requests] == ["Observation"]


# Without any Provenance


def test_without_provenance_profile_then_type_decide_and_it_is_said_once(
    tmp_path: Path, service: FakeFlattening, caplog: pytest.LogCaptureFixture
) -> None:
    job = FlatteningJob(tmp_path, [PATIENTS, OBSERVATIONS, view("g-2", "Observation", {"id": "id"}, name="Zwei")])

    def observation(name: str, *profiles: str) -> dict[str, Any]:
        return of_patient("Observation", name, "p", meta={"profile": list(profiles)})

    job.write(
        "Patient.ndjson", resource("Patient", "p"), resource("Patient", "q", meta={"profile": [PROFILE + "else"]})
    )
    job.write(
        "Observation.ndjson", observation("a", PROFILE + "g-obs"), observation("b", PROFILE + "g-2|1.2"),
        observation("c", PROFILE + "g-2", PROFILE + "g-obs"), observation("d"), of_patient("Observation", "e", "p"),
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        result = job.run(service.url)
    assert ids(job, "Patient") == ["p", "q"]  # one group has that type
    assert (ids(job, "Labor"), ids(job, "Zwei")) == (["a", "c"], ["b", "c"])
    assert result.details["unrouted"] == {"Observation": 2}  # two groups have that type
    assert result.details["routed_by"] == "profile and type"
    assert caplog.text.count("no Provenance") == 1
    assert sum("no Provenance names" in warning for warning in result.warnings) == 1


def test_a_line_without_a_provenance_is_routed_by_type_also_beside_lines_with_one(
    job: FlatteningJob, service: FakeFlattening
) -> None:
    job.write("a.ndjson", patient_line(1), of_patient("Observation", "plain", "p"))
    result = job.run(service.url)
    assert result.details["unrouted"] == {}
    assert "plain" in ids(job, "Labor")
    assert result.details["routed_by"] == "profile and type"


# After pseudonymization


def pseudonyms(line: bytes, *, targets: bool = True) -> bytes:
    """Return every id and reference by a hash; the targets of Provenances by another one without ``targets``."""

    def hashed(key: bytes) -> Any:
        return lambda match: match[1] + hashlib.sha256(key + match[2]).hexdigest()[:20].encode() + b'"'

    head, mark, tail = line.partition(b'"resource":{"resourceType":"Provenance"')
    head = re.sub(rb'("id":")([^"]+)"', hashed(b"k"), head)
    head = re.sub(rb'("reference":"[A-Za-z]+/)([^"]+)"', hashed(b"k"), head)
    tail = re.sub(rb'("reference":"[A-Za-z]+/)([^"]+)"', hashed(b"k" if targets else b"other"), tail)
    return head + mark + tail


def test_pseudonymized_data_is_routed_like_the_original(tmp_path: Path, service: FakeFlattening) -> None:
    counts = []
    for name, change in (("original", bytes), ("changed", pseudonyms)):
        job = FlatteningJob(tmp_path / name)
        job.write("a.ndjson", *[change(as_line(patient_line(n))) for n in range(5)])
        result = job.run(service.url)
        assert result.warnings == ()
        counts.append([(row["group"], row["rows"], row["resources"]) for row in result.details["groups"]])
    assert counts[0] == counts[1]
    assert counts[0][2] == ("Labor", 15, 15)


def test_ids_and_targets_changed_differently_are_an_error_that_names_the_quirk(
    job: FlatteningJob, service: FakeFlattening
) -> None:
    job.write("a.ndjson", *[pseudonyms(as_line(patient_line(n)), targets=False) for n in range(5)])
    with pytest.raises(DataError) as caught:
        job.run(service.url)
    error = caught.value
    assert (error.reference, error.exit_code) == ("flattening-unrouted", 1)
    assert "25 resources" in error.message
    assert "(Condition, Observation, Patient)" in error.message
    assert "pseudonymization" in (error.hint or "")
    assert "p1" not in error.render()
    assert service.requests == []
    assert not any(name.endswith(".csv") for name in job.tables())


def test_a_line_that_is_no_resource_is_an_error_with_its_place(job: FlatteningJob, service: FakeFlattening) -> None:
    job.write("a.ndjson", patient_line(1), b'{"resourceType":"Patient","id":"CANARY"')
    with pytest.raises(DataError) as caught:
        job.run(service.url)
    assert (caught.value.reference, caught.value.context) == ("not-json", "a.ndjson:2")
    assert "CANARY" not in caught.value.render()


def test_a_resource_without_an_id_is_not_lost(tmp_path: Path, service: FakeFlattening) -> None:
    job = FlatteningJob(tmp_path, [PATIENTS])
    job.write(
        "a.ndjson", {"resourceType": "Patient", "gender": "male"}, json.dumps({"resourceType": "Patient"}).encode()
    )
    result = job.run(service.url)
    assert len(ids(job, "Patient")) == 2
    assert "resources without an id: 2; they got one derived from content and position" in result.warnings
