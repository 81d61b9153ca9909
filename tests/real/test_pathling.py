"""Flattening with Pathling, as used at sites (document 3 §5), behind a service with fhir-flattener's interface."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.flattening.probe import service as declared_service
from tasks.flattening.views import RESOURCE_TYPE, GroupView, ViewColumn
from tasks.shared.errors import ServiceError
from tests.peers import job
from tests.peers.data import PROFILE, of_patient, provenance, resource
from tests.peers.data import identified as bundle
from tests.peers.flattening import FlatteningJob, demo_job
from tests.real.conftest import Measure

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def view(group: str, kind: str, *select: dict[str, Any], **more: Any) -> GroupView:
    """Return a view with these select clauses; their columns in the order in which they stand."""
    columns = [one for clause in select for one in clause["column"]]
    definition = {"resourceType": RESOURCE_TYPE, "name": group, "status": "active", "resource": kind, **more}
    definition["select"] = list(select)
    made = tuple(ViewColumn(one["name"], None, collection=bool(one.get("collection"))) for one in columns)
    return GroupView(group, group, PROFILE + group, kind, definition, made)


def paths(**columns: str) -> dict[str, Any]:
    return {"column": [{"name": name, "path": path} for name, path in columns.items()]}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def flattened(url: str, directory: Path, view: GroupView, *resources: dict[str, Any]) -> list[dict[str, str]]:
    """Return the rows of one group that has all these resources, by id."""
    made = FlatteningJob(directory, [view])
    made.write("a.ndjson", bundle("b", *resources, provenance(view.group_id, *resources)))
    made.run(url)
    return sorted(rows(made.output / f"{view.group_name}.csv"), key=lambda row: row["id"])


def test_the_made_up_resource_comes_back_as_its_row(pathling: str) -> None:
    config = job.configuration({"flattening": {"service_url": pathling}})
    assert job.probed(declared_service(config), config) == []


@pytest.mark.differs("pathling", "returns rows without a Content-Type and refuses `Accept: */*`")
def test_what_it_answers_has_no_content_type_and_it_takes_one_accept_only(pathling: str) -> None:
    """The client must accept an answer without type, and must not ask for another type."""
    view = {"resourceType": RESOURCE_TYPE, "resource": "Patient", "select": [paths(id="id")]}
    parameters = [
        {"name": "viewDefinition", "resource": view},
        {"name": "resources", "resource": resource("Patient", "p")},
    ]
    answers = []
    with httpx.Client(trust_env=False, timeout=60) as http:
        for accept in ("application/x-ndjson", "*/*"):
            headers = {"Content-Type": "application/fhir+json", "Accept": accept}
            sent = {"resourceType": "Parameters", "parameter": parameters}
            answers.append(http.post(f"{pathling}/fhir/ViewDefinition/$run?_format=ndjson", json=sent, headers=headers))
    assert [answer.status_code for answer in answers] == [200, 500]
    assert (answers[0].text, answers[0].headers.get("Content-Type")) == ('{"id":"p"}\n', None)


def test_the_groups_of_the_demo_are_what_a_plain_loop_gives(pathling: str, tmp_path: Path, figure: Measure) -> None:
    made, of_type = demo_job(tmp_path)
    result = figure("pathling", "the sandbox's data, three groups", lambda: made.run(pathling))

    def same(name: str, expected: list[dict[str, str]]) -> None:
        found = rows(made.output / f"{name}.csv")
        assert sorted(found, key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])

    same(
        "pat", [{"id": one["id"], **{k: one.get(k, "") for k in ("gender", "birthDate")}} for one in of_type["Patient"]]
    )
    about = [(one, {"id": one["id"], "patient": one["subject"]["reference"]}) for one in of_type["Condition"]]
    same(
        "cond",
        [
            known | {name: code.get(name, "") for name in ("system", "code", "display")}
            for one, known in about
            for code in one.get("code", {}).get("coding", ())
        ],
    )
    values = [one.get("valueQuantity", {}).get("value", "") for one in of_type["Observation"]]
    found = {row["id"]: row["value"] for row in rows(made.output / "obs.csv")}
    assert found.keys() == {one["id"] for one in of_type["Observation"]}
    for one, value in zip(of_type["Observation"], values, strict=True):
        assert found[one["id"]] == "" if value == "" else float(found[one["id"]]) == float(value)
    assert result.details["groups"]


def test_for_each_drops_who_has_none_and_for_each_or_null_keeps_them(pathling: str, tmp_path: Path) -> None:
    two = {"coding": [{"system": "icd", "code": "I10"}, {"system": "snomed", "code": "38341003"}]}
    resources = [
        of_patient("Condition", "c1", "p", code=two),
        of_patient("Condition", "c2", "p", code={"text": "none"}),
        of_patient("Condition", "c3", "p", code={"coding": [{"code": "lost"}]}),
    ]
    codes = [("c1", "I10"), ("c1", "38341003"), ("c3", "lost")]
    for clause, kept in (("forEach", codes), ("forEachOrNull", [*codes, ("c2", "")])):
        each = {clause: "code.coding", **paths(code="code")}
        one = view(clause, "Condition", paths(id="id", patient="subject.reference"), each)
        found = flattened(pathling, tmp_path / clause, one, *resources)
        assert sorted((row["id"], row["code"]) for row in found) == sorted(kept)
        assert {row["patient"] for row in found} == {"Patient/p"}


def test_a_view_with_a_constant_and_a_where_gives_those_that_fit(pathling: str, tmp_path: Path) -> None:
    one = view(
        "final", "Observation", paths(id="id"), constant=[{"name": "wanted", "valueString": "final"}],
        where=[{"path": "status = %wanted"}],
    )  # fmt: skip
    stati = ("final", "amended", "final")
    resources = [of_patient("Observation", f"o{n}", "p", status=status) for n, status in enumerate(stati)]
    assert flattened(pathling, tmp_path, one, *resources) == [{"id": "o0"}, {"id": "o2"}]


@pytest.mark.differs("pathling", "converts an `instant` to UTC and leaves a `dateTime` unchanged")
def test_choice_types_nulls_decimals_dates_and_texts(pathling: str, tmp_path: Path) -> None:
    one = view(
        "values",
        "Observation",
        paths(
            id="id",
            value="value.ofType(Quantity).value",
            text="value.ofType(string)",
            yes="value.ofType(boolean)",
            day="effective.ofType(dateTime)",
            issued="issued",
            status="status",
        ),
        {"column": [{"name": "codes", "path": "code.coding.code", "collection": True}]},
    )
    codes = {"coding": [{"code": "a"}, {"code": "b"}]}
    when = "2026-03-02T04:05:06.120+02:00"
    resources = [
        of_patient(
            "Observation", "o1", "p", valueQuantity={"value": 12345678.125}, effectiveDateTime="2026", code=codes
        ),
        of_patient("Observation", "o2", "p", valueString='Größe, "quer"\nzweite Zeile', effectiveDateTime=when),
        of_patient("Observation", "o3", "p", valueBoolean=False, status="final", issued=when),
        of_patient("Observation", "o4", "p", valueQuantity={"unit": "mg"}),
    ]
    empty = dict.fromkeys(("value", "text", "yes", "day", "issued", "status"), "") | {"codes": "[]"}
    assert flattened(pathling, tmp_path, one, *resources) == [
        {"id": "o1", **empty, "value": "12345678.125", "day": "2026", "codes": '["a","b"]'},
        {"id": "o2", **empty, "text": 'Größe, "quer"\nzweite Zeile', "day": when},
        {"id": "o3", **empty, "yes": "false", "status": "final", "issued": "2026-03-02T02:05:06.120Z"},
        {"id": "o4", **empty},
    ]


def test_many_batches_of_several_groups_have_a_row_for_each_resource(pathling: str, tmp_path: Path) -> None:
    kinds = {"one": "Observation", "two": "Condition", "three": "Encounter"}
    made = FlatteningJob(
        tmp_path, [view(key, kind, paths(id="id", patient="subject.reference")) for key, kind in kinds.items()]
    )
    for number in range(60):
        ours = {
            key: [of_patient(kind, f"{key}-{number}-{n}", f"p{number}") for n in range(5)]
            for key, kind in kinds.items()
        }
        named = [provenance(key, *members) for key, members in ours.items()]
        made.write(
            f"{number:02}.ndjson", bundle(f"b{number}", *(one for each in ours.values() for one in each), *named)
        )
    result = made.run(pathling, batch_size_mb=1)
    assert result.details["requests"] >= 3
    for key in kinds:
        assert {row["id"] for row in rows(made.output / f"{key}.csv")} == {
            f"{key}-{number}-{n}" for number in range(60) for n in range(5)
        }


@pytest.mark.differs(
    "pathling", "refuses a choice element without its type, and a column for a whole concept or quantity"
)
@pytest.mark.parametrize(
    "path", ["effective", "code", "value.ofType(Quantity)", "subject.where("],
    ids=["bare choice", "CodeableConcept", "Quantity", "no FHIRPath"],
)  # fmt: skip
def test_a_view_that_pathling_refuses_is_a_terminal_error_that_names_the_group(
    pathling: str, tmp_path: Path, path: str
) -> None:
    with pytest.raises(ServiceError) as caught:
        flattened(
            pathling, tmp_path, view("odd", "Observation", paths(id="id", x=path)), of_patient("Observation", "o", "p")
        )
    assert (caught.value.reference, caught.value.status) == ("flattening-failed", 500)
    assert "odd" in (caught.value.context or "")
