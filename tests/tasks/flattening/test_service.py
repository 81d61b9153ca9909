"""The flattening service: what is made up goes first, wrong answers, and what is told of them (docs/services.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from config import PipelineConfig
from tasks.flattening.step import STEP
from tasks.shared.errors import InputError, ServiceError, SluiceError, StalledError
from tasks.shared.step import CheckContext, GivenInputs
from tests.peers import data, services
from tests.peers.job import probed
from tests.peers.server import Reply, ScriptedServer, SeenRequest
from tests.tasks.flattening.place import DIAGNOSES, OBSERVATIONS, PATIENTS, FlatteningPlace, GroupSpec, columns, sent

ANSWER, ROW, DIFFER = "flattening-answer", "flattening-row", "flattening-rows-differ"

# What is made up


def identified(url: str, directory: Path) -> list[Any]:
    """Return what is found out about whose URL this is."""
    config = FlatteningPlace(directory).configuration(url)
    (service,) = STEP.services(config)
    return probed(service, config)


def test_a_service_is_known_by_a_made_up_patient_and_gets_no_other_data(
    tmp_path: Path, service: ScriptedServer
) -> None:
    assert identified(service.url, tmp_path) == []
    assert [sent(seen) for seen in service.seen] == [("Patient", ["sluice-probe"])]


WRONG_ANSWERS = {
    "another row": Reply(body=b'{"id":"x"}'),
    "no row": Reply(),
    "a page": Reply(body=b"<html></html>", headers={"Content-Type": "text/html"}),
    "a page without a type": Reply(body=b"<html></html>"),
    "a promise": Reply(202),
    "not found": Reply(404),
}


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_another_service_is_a_finding_about_its_url(tmp_path: Path, service: ScriptedServer, name: str) -> None:
    service.script = lambda _: WRONG_ANSWERS[name]
    (found,) = identified(service.url, tmp_path)
    assert (found.reference, found.exit_code, found.transient) == ("wrong-service", 2, False)
    assert found.context.startswith("services.flattening.service_url: POST http://127.0.0.1")


@pytest.mark.parametrize("kind", ["application/x-ndjson; charset=utf-8", "APPLICATION/NDJSON", "application/json", ""])
def test_rows_may_come_under_several_media_types_or_none(tmp_path: Path, service: ScriptedServer, kind: str) -> None:
    row = b'{"id":"sluice-probe"}'
    service.script = lambda _: Reply(body=row, headers={"Content-Type": kind} if kind else {})
    assert identified(service.url, tmp_path) == []


def test_a_500_may_be_a_service_that_starts(tmp_path: Path, service: ScriptedServer) -> None:
    service.script = lambda _: Reply(500)
    (found,) = identified(service.url, tmp_path)
    assert found.transient


def tried(place: FlatteningPlace, url: str) -> list[SluiceError]:
    return list(STEP.trials(CheckContext(place.configuration(url), GivenInputs(crtdl=place.query))))


def test_a_view_is_tried_with_the_columns_that_the_enrichments_bring(tmp_path: Path, service: ScriptedServer) -> None:
    place = FlatteningPlace(tmp_path, groups=(PATIENTS,))
    tables = json.loads(place.lookup.read_text())
    tables[0]["elements"]["Patient.birthDate"] = {"viewDefinition": columns(born="birthDate")}
    place.lookup.write_text(json.dumps(tables))
    rule = {
        "group_reference": data.PROFILE + PATIENTS.key,
        "attributes_to_add": [{"attribute_ref": "Patient.birthDate"}],
    }
    given = place.configuration(service.url).model_dump(mode="json", exclude_unset=True)
    given["services"]["crtdl_preprocessing"] = {"enabled": True, "enrichments": [rule]}
    context = CheckContext(PipelineConfig.model_validate(given), GivenInputs(crtdl=place.query))
    assert list(STEP.trials(context)) == []
    assert b"birthDate" in service.seen[0].body


def test_each_real_view_is_tried_with_a_made_up_resource_of_its_type(
    place: FlatteningPlace, service: ScriptedServer
) -> None:
    assert tried(place, service.url) == []
    kinds = ("Patient", "Condition", "Observation")
    assert [sent(seen) for seen in service.seen] == [(kind, ["sluice-probe"]) for kind in kinds]
    place.write("a.ndjson", data.patient("p"))
    place.run(service.url)
    written = [json.loads(path.read_bytes()) for path in (place.job / "viewdefinitions").iterdir()]
    assert all(json.loads(seen.body)["parameter"][0]["resource"] in written for seen in service.seen)


@pytest.mark.parametrize("status", [400, 422, 500])
def test_a_view_that_is_refused_is_named_with_its_table_and_the_words_of_the_service(
    place: FlatteningPlace, service: ScriptedServer, status: int
) -> None:
    issue = {"severity": "error", "code": "exception", "diagnostics": "no such element:\n valueQantity"}

    def script(seen: SeenRequest) -> Reply | None:
        return Reply(status, services.outcome(issue)) if sent(seen)[0] != "Patient" else None

    service.script = script
    first, second = tried(place, service.url)
    assert isinstance(first, InputError)
    assert (first.reference, first.exit_code) == ("flattening-view", 2)
    assert "group Diagnosen" in first.message
    assert f"answered {status}: no such element: valueQantity" in first.message
    assert first.context == f"services.flattening.lookup_path: table {data.PROFILE}g-cond"
    assert "group Labor" in second.message
    assert len(service.seen) == 3  # not repeated


def test_rows_of_a_made_up_resource_that_are_not_its_own_are_a_finding(
    place: FlatteningPlace, service: ScriptedServer
) -> None:
    service.script = lambda seen: Reply() if sent(seen)[0] == "Observation" else None
    (found,) = tried(place, service.url)
    assert "group Labor" in found.message
    assert "1 missing" in found.message


def test_a_service_that_goes_away_meanwhile_is_no_finding_about_a_view(
    place: FlatteningPlace, service: ScriptedServer
) -> None:
    service.script = lambda seen: Reply(503) if sent(seen)[0] == "Condition" else None
    (found,) = tried(place, service.url)
    assert (found.reference, found.exit_code) == ("service-busy", 3)


def test_without_usable_files_no_view_is_tried(place: FlatteningPlace, service: ScriptedServer) -> None:
    place.lookup.write_text("[7]")
    assert tried(place, service.url) == []
    assert [*STEP.trials(CheckContext(place.configuration(service.url)))] == []
    assert service.seen == []


# Wrong answers

OR_NULL = GroupSpec("g-code", "Condition", {"forEachOrNull": "code.coding"} | columns(code="code"), "Codes")
GROUPS = (PATIENTS, DIAGNOSES, OBSERVATIONS, OR_NULL)

Change = Callable[[list[bytes], list[bytes]], list[bytes]]
"""The rows of an answer, by the right ones and one of another request."""

WRONG: dict[str, tuple[GroupSpec, Change, str]] = {
    "a login page": (OBSERVATIONS, lambda *_: [b"<html>welcome</html>"], ROW),
    "a list of the rows": (OBSERVATIONS, lambda rows, _: [b"[" + b",".join(rows) + b"]"], ROW),
    "an OperationOutcome": (OBSERVATIONS, lambda *_: [b'{"resourceType":"OperationOutcome","issue":[]}'], DIFFER),
    "nothing": (OBSERVATIONS, lambda *_: [], DIFFER),
    "an error behind the rows": (OBSERVATIONS, lambda rows, _: [*rows, b"java.lang.OutOfMemoryError"], ROW),
    "a row is missing": (OBSERVATIONS, lambda rows, _: rows[1:], DIFFER),
    "a row twice": (OBSERVATIONS, lambda rows, _: [*rows, rows[0]], DIFFER),
    "rows of another request": (OBSERVATIONS, lambda _, others: others, DIFFER),
    "Type/id for the id": (
        OBSERVATIONS, lambda rows, _: [row.replace(b'"id":"', b'"id":"Observation/') for row in rows], DIFFER,
    ),
    "no ids": (OBSERVATIONS, lambda rows, _: [re.sub(rb'"id":"[^"]+",', b"", row) for row in rows], DIFFER),
    "forEach: a row of another request": (DIAGNOSES, lambda rows, others: [*rows, others[0]], DIFFER),
    "forEachOrNull: a resource has no row": (
        OR_NULL, lambda rows, _: [row for row in rows if b"-c2" not in row], DIFFER,
    ),
}  # fmt: skip
HEADS = {
    "HTML": Reply(body=b"<html></html>", headers={"Content-Type": "text/html"}),
    "a promise": Reply(202),
}


def line(number: int) -> dict[str, Any]:
    one = f"canary{number}"
    patient = data.patient(one, gender="female")
    values = [
        data.observation(f"{one}-o{n}", one, valueQuantity={"value": n + number}, note="x" * 30_000) for n in range(6)
    ]
    codes: list[list[dict[str, str]]] = [[{"code": "I10"}, {"code": "E11"}], [{"code": "J45"}], []]
    conditions = [
        data.of_patient("Condition", f"{one}-c{n}", one, code={"coding": coding}, note="x" * 30_000)
        for n, coding in enumerate(codes)
    ]
    groups = {"g-pat": [patient], "g-obs": values, "g-cond": conditions, "g-code": conditions}
    named = [data.provenance(group, *members) for group, members in groups.items()]
    return data.bundle(patient, *values, *conditions, *named)


OTHER = data.as_line(data.of_patient("Condition", "other", "p", code={"coding": [{"code": "x"}]}))
"""A resource of another request."""


def rows_of(view: dict[str, Any], resources: list[bytes]) -> list[bytes]:
    return [services.as_row(row) for one in resources for row in services.select_rows(view["select"], one)]


def fails_at_a_later_batch(
    directory: Path, service: ScriptedServer, group: GroupSpec, answer: Callable[[list[bytes], list[bytes]], Reply]
) -> ServiceError:
    """Assert that the step ends without a table and goes on afterwards; return the error."""
    victims: list[list[str]] = []

    def script(seen: SeenRequest) -> Reply | None:
        view, resources = services.view_run(seen.body)
        if view["name"] != group.title or b"canary0-" in resources[0]:
            return None
        victims.append(sent(seen)[1])
        return answer(rows_of(view, resources), rows_of(view, [OTHER]))

    place = FlatteningPlace(directory, GROUPS, {"batch_size_mb": 1})
    place.write("a.ndjson", *map(line, range(8)))
    service.script = script
    with pytest.raises(ServiceError) as caught:
        place.run(service.url)
    assert place.tables() == {}  # no later step sees any
    for part in (place.job / "csv" / ".parts").glob(f"*/{group.title}/*.csv"):
        assert not any(f"{one},".encode() in part.read_bytes() for one in victims[0])
    service.script = None
    place.run(service.url)
    assert len(place.ids("Labor")) == 8 * 6
    error = caught.value
    assert f"group {group.title}, resources " in (error.context or "")
    assert "anary" not in error.render()
    return error


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rows_end_the_step_and_none_of_them_stays_in_a_table(
    tmp_path: Path, service: ScriptedServer, name: str
) -> None:
    group, change, reference = WRONG[name]
    error = fails_at_a_later_batch(
        tmp_path, service, group, lambda *rows: Reply(body=b"".join(row + b"\n" for row in change(*rows)))
    )
    assert error.reference == reference


@pytest.mark.parametrize("name", HEADS)
def test_an_answer_that_cannot_hold_rows_ends_the_step(tmp_path: Path, service: ScriptedServer, name: str) -> None:
    error = fails_at_a_later_batch(tmp_path, service, OBSERVATIONS, lambda *_: HEADS[name])
    assert error.reference == ANSWER


@pytest.mark.parametrize(
    ("status", "reference", "code"),
    [(500, "flattening-failed", 1), (413, "service-too-large", 1), (503, "service-busy", 3)],
)
def test_an_error_names_group_and_batch_and_what_may_be_wrong(
    place: FlatteningPlace, service: ScriptedServer, status: int, reference: str, code: int
) -> None:
    place.write("a.ndjson", line(1))
    service.script = lambda _: Reply(status, b"java heap of canary")
    with pytest.raises(SluiceError) as caught:
        place.run(service.url)
    error = caught.value
    assert (error.exit_code, error.status, error.reference) == (code, status, reference)
    assert "group " in (error.context or "")
    assert "resources 1 to " in (error.context or "")
    assert "batch_size_mb" in (error.hint or "")
    assert ("the view of the group may be wrong" in (error.hint or "")) == (status == 500)
    assert "canary" not in error.render()
    kept = [path.read_bytes() for path in (place.job / "flattening" / "failed").iterdir()]
    assert b"java heap of canary" in kept


def test_a_batch_that_is_not_answered_in_time_is_not_sent_again(
    place: FlatteningPlace, service: ScriptedServer
) -> None:
    place.write("a.ndjson", line(1))
    service.script = lambda _: Reply(stall=True)
    with pytest.raises(StalledError) as caught:
        place.run(service.url, timeout="PT1S")
    assert caught.value.reference == "flattening-timeout"
    assert "batch_size_mb" in (caught.value.hint or "")
    bodies = [seen.body for seen in service.seen]
    assert len(bodies) == len(set(bodies))
