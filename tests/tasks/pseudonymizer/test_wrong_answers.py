"""Wrong answers of a pseudonymization service (document 3 §4, "What must agree in every answer").

What is wrong with JSON of any service is in ``tests/tasks/shared/http/test_json_answer.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.pseudonymizer.client import service as declared_service
from tasks.shared.errors import SluiceError
from tests.peers import job
from tests.peers.data import identified as bundle
from tests.peers.data import observation, patient
from tests.peers.pseudonymization import FakePseudonymizer, PseudonymizationRequest, PseudonymizerJob
from tests.peers.server import Reply
from tests.peers.services import pseudonyms

NAME = [{"family": "Canary", "given": ["Bird"]}]
IDENTIFIER = [{"system": "http://hospital.example/mrn", "value": "4711-CANARY"}]
ANSWER, ENTRIES, RESIDUAL = "pseudonymizer-answer", "pseudonymizer-entries", "residual-identifiers"


def entries(change: Callable[[list[Any]], list[Any]]) -> Callable[[dict[str, Any]], Any]:
    return lambda answer: answer | {"entry": change(answer["entry"])}


def first(**elements: Any) -> Callable[[dict[str, Any]], Any]:
    """The patient gets some elements."""
    return lambda answer: answer["entry"][0]["resource"].update(elements) or answer


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "HTML": (lambda _: b"<html>welcome</html>", ANSWER),
    "an OperationOutcome": (lambda _: {"resourceType": "OperationOutcome", "issue": []}, ANSWER),
    "the Patient without its Bundle": (lambda answer: answer["entry"][0]["resource"], ANSWER),
    "another type of Bundle": (lambda answer: answer | {"type": "history"}, ANSWER),
    "an entry is missing": (entries(lambda given: given[:-1]), ENTRIES),
    "an entry too many": (entries(lambda given: [*given, given[-1]]), ENTRIES),
    "no entries": (lambda answer: {key: answer[key] for key in answer if key != "entry"}, ENTRIES),
    "an entry without its resource": (entries(lambda given: [*given[:-1], {"fullUrl": "urn:x"}]), ANSWER),
    "a resource that is null": (entries(lambda given: [*given[:-1], {"resource": None}]), ANSWER),
    "types in another order": (entries(lambda given: given[::-1]), ANSWER),
    "a resource of another type": (first(resourceType="Condition"), ANSWER),
    "the name stays": (first(name=NAME), RESIDUAL),
    "the given name alone stays": (first(name=[{"family": "x", "given": ["Bird"]}]), RESIDUAL),
    "the identifier stays": (first(identifier=IDENTIFIER), RESIDUAL),
}


def line() -> dict[str, Any]:
    person = patient("p", name=NAME, identifier=IDENTIFIER)
    return bundle("b", person, observation("o1", "p"), observation("o2", "p"))


def wrong(name: str, resource: bytes) -> Reply:
    document = json.loads(pseudonyms(resource))
    for key in ("name", "identifier"):
        document["entry"][0]["resource"].pop(key, None)
    answer = WRONG[name][0](document)
    return Reply(body=answer if isinstance(answer, bytes) else json.dumps(answer).encode())


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_ends_the_step_with_the_place_of_the_line(name: str, tmp_path: Path) -> None:
    job = PseudonymizerJob(tmp_path)
    job.write("a.ndjson", line())

    def script(_: int, request: PseudonymizationRequest) -> Reply | None:
        return None if request.is_probe else wrong(name, request.resource)

    with FakePseudonymizer(script=script) as service, pytest.raises(SluiceError) as caught:
        job.run(service.url, attempts=1)
    reference = WRONG[name][1]
    assert caught.value.reference == reference
    assert ("a.ndjson" if reference == RESIDUAL else "a.ndjson:1") in (caught.value.context or "")
    assert "anary" not in caught.value.render()
    assert not (job.output / "a.ndjson").exists()  # no later step sees it


@pytest.mark.parametrize("name", [name for name, (_, reference) in WRONG.items() if reference != RESIDUAL])
def test_a_wrong_answer_to_the_made_up_resource_is_found_before_a_job_exists(name: str) -> None:
    with FakePseudonymizer(script=lambda _, request: wrong(name, request.resource)) as service:
        config = job.configuration({"pseudonymizer": {"url": service.url}}, attempts=1)
        (found,) = job.probed(declared_service(config), config)
        assert (found.reference, found.transient, len(service.requests)) == ("wrong-service", False, 1)
