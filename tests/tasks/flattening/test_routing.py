"""Routing of resources to groups (docs/steps.md)."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tasks.shared.errors import DataError
from tests.peers.data import PROFILE, as_line, bundle, grouped_person, of_patient, provenance, resource
from tests.peers.server import ScriptedServer
from tests.tasks.flattening.place import OBSERVATIONS, PATIENTS, FlatteningPlace, GroupSpec, columns, sent

MEDICATION = GroupSpec("g-med", "Medication", columns(status="status"), "Medikation")
TWO = GroupSpec("g-2", "Observation", columns(status="status"), "Zwei")


def test_resources_without_provenance_are_counted_by_type_and_the_others_routed(
    place: FlatteningPlace, service: ScriptedServer
) -> None:
    one, two = of_patient("Observation", "one", "p"), of_patient("Observation", "two", "p")
    place.write("a.ndjson", bundle(one, two, resource("Encounter", "e"), provenance("g-obs", one)))
    report = place.run(service.url)
    assert place.ids("Labor") == ["one"]
    assert report.resources_in == 3
    assert report.details["unrouted"] == {"Encounter": 1, "Observation": 1}
    assert report.warnings == ("resources that belong to no group: Encounter 1, Observation 1",)
    assert report.details["routed_by"] == "Provenance"


def test_a_resource_named_by_several_groups_goes_to_each_once(tmp_path: Path, service: ScriptedServer) -> None:
    place = FlatteningPlace(tmp_path, (PATIENTS, OBSERVATIONS, TWO))
    one = of_patient("Observation", "one", "p")
    named = [provenance("g-obs", one, one), provenance("g-obs", one), provenance("g-2", one)]
    place.write("a.ndjson", bundle(one, *named))
    place.run(service.url)
    assert (place.ids("Labor"), place.ids("Zwei")) == (["one"], ["one"])


def test_a_resource_that_occurs_several_times_has_a_row_each_time(
    place: FlatteningPlace, service: ScriptedServer
) -> None:
    place.write("a.ndjson", *[resource("Patient", "p", gender=gender) for gender in ("female", "male")])
    place.run(service.url)
    assert place.tables()["Patient.csv"] == b"id,gender\np,female\np,male\n"


@pytest.mark.parametrize("name", ["core.ndjson", "CORE.ndjson.zst"])
def test_core_is_first_and_its_provenances_serve_all_lines(tmp_path: Path, service: ScriptedServer, name: str) -> None:
    place = FlatteningPlace(tmp_path, (PATIENTS, MEDICATION))
    medications = [resource("Medication", f"m{n}") for n in range(4)]
    patient = resource("Patient", "p")
    place.write("a.ndjson", bundle(patient, *medications[2:], provenance("g-pat", patient)))
    place.write(name, bundle(*medications[:2]), bundle(provenance("g-med", *medications[:3])), medications[0])
    report = place.run(service.url)
    assert place.ids("Medikation") == ["m0", "m1", "m0", "m2"]
    assert place.ids("Patient") == ["p"]
    assert report.details["unrouted"] == {"Medication": 1}
    assert report.details["routed_by"] == "Provenance"


def test_references_may_be_absolute_or_of_a_version(place: FlatteningPlace, service: ScriptedServer) -> None:
    values = [of_patient("Observation", f"o{n}", "p") for n in range(4)]
    targets = [
        "Observation/o0", "http://x.example/fhir/Observation/o1", "Observation/o2/_history/3",
        "https://x.example/a/fhir/Observation/o3/_history/1",
    ]  # fmt: skip
    place.write("a.ndjson", bundle(*values, provenance("g-obs", *targets)))
    place.run(service.url)
    assert place.ids("Labor") == ["o0", "o1", "o2", "o3"]


@pytest.mark.parametrize(
    "entity",
    [None, 3, [{"what": 3}], [{"what": {"identifier": []}}], [{"what": {"identifier": {"system": 3, "value": "x"}}}],
     [{"what": {"identifier": {"system": "x/other", "value": "x"}}}]],
)  # fmt: skip
def test_a_provenance_about_something_else_is_a_resource_like_others(
    tmp_path: Path, service: ScriptedServer, entity: object
) -> None:
    place = FlatteningPlace(tmp_path, (PATIENTS, GroupSpec("g-prov", "Provenance", columns(x="x"), "Herkunft")))
    other = resource("Provenance", "x", target=[{"reference": "Patient/p"}], **({"entity": entity} if entity else {}))
    one = resource("Patient", "p")
    place.write("a.ndjson", bundle(one, other, provenance("g-pat", one), provenance("g-prov", other)))
    report = place.run(service.url)
    assert place.ids("Herkunft") == ["x"]
    assert report.resources_in == 2


def test_groups_without_a_view_take_their_resources_with_them(tmp_path: Path, service: ScriptedServer) -> None:
    place = FlatteningPlace(tmp_path, (PATIENTS, GroupSpec("g-enc", "Encounter", None)))
    one, two = resource("Patient", "p"), of_patient("Encounter", "e", "p")
    place.write("a.ndjson", bundle(one, two, provenance("g-pat", one), provenance("g-enc", two)))
    report = place.run(service.url)
    assert report.details["left_out"] == {"Encounter": 1}
    assert report.details["unrouted"] == {}
    assert report.warnings[-1] == "resources that belong only to groups that get no CSV: Encounter 1"


def test_a_view_gets_resources_of_its_own_type_only(place: FlatteningPlace, service: ScriptedServer) -> None:
    one, two = of_patient("Observation", "o", "p"), of_patient("Condition", "c", "p")
    place.write("a.ndjson", bundle(one, two, provenance("g-obs", one, two)))
    report = place.run(service.url)
    assert report.details["unrouted"] == {"Condition": 1}
    assert [sent(seen) for seen in service.seen] == [("Observation", ["o"])]


# Without a Provenance


def test_without_provenance_profile_then_type_decide_and_it_is_said_once(
    tmp_path: Path, service: ScriptedServer
) -> None:
    place = FlatteningPlace(tmp_path, (PATIENTS, OBSERVATIONS, TWO))

    def observation(name: str, *profiles: str) -> dict[str, Any]:
        return of_patient("Observation", name, "p", meta={"profile": list(profiles)})

    place.write(
        "Patient.ndjson", resource("Patient", "p"), resource("Patient", "q", meta={"profile": [PROFILE + "else"]})
    )
    place.write(
        "Observation.ndjson", observation("a", PROFILE + "g-obs"), observation("b", PROFILE + "g-2|1.2"),
        observation("c", PROFILE + "g-2", PROFILE + "g-obs", PROFILE + "g-2|2"), observation("d"),
        of_patient("Observation", "e", "p"),
    )  # fmt: skip
    report = place.run(service.url)
    assert place.ids("Patient") == ["p", "q"]  # one group has that type
    assert (place.ids("Labor"), place.ids("Zwei")) == (["a", "c"], ["b", "c"])
    assert report.details["unrouted"] == {"Observation": 2}  # two groups have that type
    assert report.details["routed_by"] == "profile and type"
    assert sum("no Provenance names them: 7" in warning for warning in report.warnings) == 1


def test_two_groups_of_a_type_need_a_profile_also_if_one_has_no_table(tmp_path: Path, service: ScriptedServer) -> None:
    place = FlatteningPlace(tmp_path, (PATIENTS, OBSERVATIONS, GroupSpec("g-2", "Observation", None)))
    place.write("a.ndjson", resource("Patient", "p"), of_patient("Observation", "o", "p"))
    assert place.run(service.url).details["unrouted"] == {"Observation": 1}


def test_a_line_without_a_provenance_is_routed_by_type_also_beside_lines_with_one(
    place: FlatteningPlace, service: ScriptedServer
) -> None:
    place.write("a.ndjson", grouped_person(1), of_patient("Observation", "plain", "p"))
    report = place.run(service.url)
    assert report.details["unrouted"] == {}
    assert "plain" in place.ids("Labor")
    assert report.details["routed_by"] == "profile and type"


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


def test_pseudonymized_data_is_routed_like_the_original(tmp_path: Path, service: ScriptedServer) -> None:
    counts = []
    for name, change in (("original", bytes), ("changed", pseudonyms)):
        place = FlatteningPlace(tmp_path / name)
        place.write("a.ndjson", *[change(as_line(grouped_person(n))) for n in range(5)])
        report = place.run(service.url)
        assert report.warnings == ()
        counts.append([(row["group"], row["rows"], row["resources"]) for row in report.details["groups"]])
    assert counts[0] == counts[1]
    assert counts[0][2] == ("Labor", 15, 15)


def test_ids_and_targets_changed_differently_are_an_error_that_names_the_quirk(
    place: FlatteningPlace, service: ScriptedServer
) -> None:
    place.write("a.ndjson", *[pseudonyms(as_line(grouped_person(n)), targets=False) for n in range(5)])
    with pytest.raises(DataError) as caught:
        place.run(service.url)
    error = caught.value
    assert (error.reference, error.exit_code) == ("flattening-unrouted", 1)
    assert "25 resources" in error.message
    assert "(Condition, Observation, Patient)" in error.message
    assert "pseudonymization" in (error.hint or "")
    assert "p1" not in error.render()
    assert service.seen == []
    assert place.tables() == {}


@pytest.mark.parametrize(
    ("line", "reference"),
    [
        (b'{"resourceType":"Patient","id":"CANARY"', "not-a-resource"),
        (b'{"resourceType":"Bundle","type":"history","entry":[]}', "bundle-type"),
        (b'{"resourceType":"Bundle","type":"transaction","entry":[{"resource":{"id":"CANARY"}}]}', "not-a-resource"),
    ],
)
@pytest.mark.parametrize("name", ["a.ndjson", "core.ndjson"])
def test_a_line_that_is_no_resource_is_an_error_with_its_place(
    place: FlatteningPlace, service: ScriptedServer, line: bytes, reference: str, name: str
) -> None:
    place.write(name, grouped_person(1), line)
    with pytest.raises(DataError) as caught:
        place.run(service.url)
    assert (caught.value.reference, caught.value.context) == (reference, f"{name}:2")
    assert "CANARY" not in caught.value.render()


def test_a_resource_without_an_id_has_a_row(place: FlatteningPlace, service: ScriptedServer) -> None:
    place.write(
        "a.ndjson", {"resourceType": "Patient", "gender": "male"}, json.dumps({"resourceType": "Patient"}).encode()
    )
    place.run(service.url)
    assert place.tables()["Patient.csv"] == b"id,gender\n,male\n,\n"
