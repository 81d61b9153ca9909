"""Wrong answers of a flattening service (document 3 §5, "What must agree")."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.flattening.flattening import FlatteningBounds
from tasks.flattening.views import GroupView
from tasks.shared.errors import ServiceError
from tests.peers.flattening import (
    CONDITIONS,
    OBSERVATIONS,
    PATIENTS,
    FakeFlattening,
    FlatteningJob,
    FlatteningRequest,
    bundle,
    of_patient,
    provenance,
    resource,
    rows_of,
    view,
)
from tests.peers.server import Reply

ANSWER, ROW, DIFFER = "flattening-answer", "flattening-row", "flattening-rows-differ"
OR_NULL = view(
    "g-code", "Condition", {"id": "id"}, name="Codes", each="code.coding", below={"code": "code"},
    clause="forEachOrNull",
)  # fmt: skip
VIEWS = (PATIENTS, CONDITIONS, OBSERVATIONS, OR_NULL)
SMALL: dict[str, Any] = {"bounds": FlatteningBounds(mebibyte=1000), "batch_size_mb": 4, "attempts": 1}

Rows = Callable[[list[bytes], list[bytes]], list[bytes]]
"""The rows of an answer, by the right ones and those of the answer before."""

WRONG: dict[str, tuple[GroupView, Rows, str]] = {
    "a login page": (OBSERVATIONS, lambda *_: [b"<html>welcome</html>"], ROW),
    "a list of the rows": (OBSERVATIONS, lambda rows, _: [b"[" + b",".join(rows) + b"]"], ROW),
    "an OperationOutcome": (OBSERVATIONS, lambda *_: [b'{"resourceType":"OperationOutcome","issue":[]}'], DIFFER),
    "nothing": (OBSERVATIONS, lambda *_: [], DIFFER),
    "an error behind the rows": (OBSERVATIONS, lambda rows, _: [*rows, b"java.lang.OutOfMemoryError"], ROW),
    "a row is missing": (OBSERVATIONS, lambda rows, _: rows[1:], DIFFER),
    "a row twice": (OBSERVATIONS, lambda rows, _: [*rows, rows[0]], DIFFER),
    "the answer before": (OBSERVATIONS, lambda _, before: before, DIFFER),
    "Type/id for the id": (
        OBSERVATIONS, lambda rows, _: [row.replace(b'"id":"', b'"id":"Observation/') for row in rows], DIFFER,
    ),
    "no ids": (OBSERVATIONS, lambda rows, _: [re.sub(rb'"id":"[^"]+",', b"", row) for row in rows], DIFFER),
    "forEach: a row of the answer before": (CONDITIONS, lambda rows, before: [*rows, before[0]], DIFFER),
    "forEachOrNull: a resource has no row": (OR_NULL, lambda rows, _: rows[:-1], DIFFER),
}  # fmt: skip
HEADS = {
    "HTML": Reply(body=b"<html></html>", headers={"Content-Type": "text/html"}),
    "an encoding that was not requested": Reply(body=b"", headers={"Content-Encoding": "gzip"}),
    "a promise": Reply(202),
}


def line(number: int) -> dict[str, Any]:
    one = f"canary{number}"
    patient = resource("Patient", one, gender="female")
    values = [of_patient("Observation", f"{one}-o{n}", one, valueQuantity={"value": n + number}) for n in range(6)]
    codes: list[list[dict[str, str]]] = [[{"code": "I10"}, {"code": "E11"}], [{"code": "J45"}], []]
    conditions = [
        of_patient("Condition", f"{one}-c{n}", one, code={"coding": coding}) for n, coding in enumerate(codes)
    ]
    groups = {"g-pat": [patient], "g-obs": values, "g-cond": conditions, "g-code": conditions}
    named = [provenance(group, *members) for group, members in groups.items()]
    return bundle(f"b{number}", patient, *values, *conditions, *named)


def fails_at_the_second_batch(
    directory: Path, group: GroupView, answer: Callable[[list[bytes], list[bytes]], Reply]
) -> ServiceError:
    """Assert that the step ends without a table and goes on afterwards; return the error."""
    answers: list[list[bytes]] = []

    def script(_: int, request: FlatteningRequest) -> Reply | None:
        if request.view["name"] != group.definition["name"]:
            return None
        answers.append([row for one in request.resources for row in rows_of(request.view, one)])
        return answer(answers[1], answers[0]) if len(answers) == 2 else None

    job = FlatteningJob(directory, VIEWS)
    job.write("a.ndjson", *map(line, range(8)))
    with FakeFlattening(script) as service:
        with pytest.raises(ServiceError) as caught:
            job.run(service.url, **SMALL)
        unfinished = job.tables()
        service.script = None
        job.run(service.url, **SMALL)
    assert all(name.endswith(".partial") for name in unfinished)  # no later step sees it
    assert unfinished[f"{group.group_name}.csv.partial"].count(b"\n") == 1 + len(answers[0])
    assert job.tables()["Labor.csv"].count(b"\n") == 1 + 8 * 6
    error = caught.value
    assert f"group {group.group_name}, batch 2" in (error.context or "")
    assert "anary" not in error.render()
    return error


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rows_end_the_step_and_none_of_them_stays_in_a_table(name: str, tmp_path: Path) -> None:
    group, change, reference = WRONG[name]
    error = fails_at_the_second_batch(
        tmp_path, group, lambda *rows: Reply(body=b"".join(row + b"\n" for row in change(*rows)))
    )
    assert error.reference == reference


@pytest.mark.parametrize("name", HEADS)
def test_an_answer_that_cannot_hold_rows_ends_the_step(name: str, tmp_path: Path) -> None:
    error = fails_at_the_second_batch(tmp_path, OBSERVATIONS, lambda *_: HEADS[name])
    assert error.reference == ANSWER


def test_a_500_to_all_attempts_names_group_batch_and_what_may_be_wrong(tmp_path: Path) -> None:
    error = fails_at_the_second_batch(tmp_path, OBSERVATIONS, lambda *_: Reply(500))
    assert (error.exit_code, error.status, error.reference) == (1, 500, "flattening-failed")
    assert "view of the group" in (error.hint or "")
    assert "batch_size_mb" in (error.hint or "")


def test_a_view_with_for_each_may_give_any_number_of_rows(tmp_path: Path) -> None:
    with FakeFlattening() as service:
        service.rows = lambda view, one: [] if b"-c1" in one else rows_of(view, one)
        job = FlatteningJob(tmp_path, [PATIENTS, CONDITIONS])
        job.write("a.ndjson", line(1))
        result = job.run(service.url)
    counts = {row["group"]: (row["resources"], row["with_rows"]) for row in result.details["groups"]}
    assert counts["Diagnosen"] == (3, 1)
    assert result.details["rows"] == 3
