"""Wrong answers of a FHIR server to a transaction (document 3 §7).

Those of a transfer endpoint are in ``test_transfer.py``, those of a store in ``test_s3.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.shared.errors import ServiceError
from tests.peers.data import bundle
from tests.peers.fhir import DirectLoadJob, FhirReply, observation, serving

VICTIM = 3
"""The transaction that is answered wrongly, of eight of three resources each."""

Answer = dict[str, Any]


def entries(change: Callable[[list[Any]], Any]) -> Callable[[Answer], Answer]:
    return lambda right: right | {"entry": change(right["entry"])}


def last(**changes: Any) -> Callable[[Answer], Answer]:
    """The response of the last entry is another one."""
    return entries(lambda given: [*given[:-1], {"response": given[-1]["response"] | changes}])


WRONG: dict[str, Callable[[Answer], Any]] = {
    "a login page": lambda _: b"<html>canary</html>",
    "nothing": lambda _: b"",
    "half of the JSON": lambda right: json.dumps(right).encode()[:-20],
    "a list": lambda right: [right],
    "an OperationOutcome": lambda _: {"resourceType": "OperationOutcome", "issue": []},
    "a batch-response": lambda right: right | {"type": "batch-response"},
    "an entry is missing": entries(lambda given: given[:-1]),
    "an entry too many": entries(lambda given: [*given, given[-1]]),
    "no entries": lambda right: {key: right[key] for key in right if key != "entry"},
    "an entry without response": entries(lambda given: [*given[:-1], {}]),
    "a status that is none": last(status="2000"),
    "a refusal under 200": last(status="422 Unprocessable Entity"),
    "the location of another resource": last(location="Observation/o0-0/_history/1"),
    "the location of another type": last(location="Patient/o3-2/_history/1"),
}
HEADS: dict[str, Callable[[bytes], FhirReply]] = {
    "a promise": lambda body: FhirReply(202, body, apply=False),
    "HTML by its header": lambda body: FhirReply(200, body, {"Content-Type": "text/html"}, apply=False),
}


def right_answer(sent: Answer) -> Answer:
    """Return HAPI's answer: statuses and locations."""
    urls = [entry["request"]["url"] for entry in sent["entry"]]
    results = [{"response": {"status": "201 Created", "location": f"{url}/_history/1"}} for url in urls]
    return {"resourceType": "Bundle", "type": "transaction-response", "entry": results}


@pytest.mark.parametrize("name", [*WRONG, *HEADS])
def test_nothing_of_a_transaction_counts_whose_answer_is_wrong(name: str, tmp_path: Path) -> None:
    job = DirectLoadJob(tmp_path)
    job.write("a.ndjson", *[bundle(*[observation(f"o{n}-{k}") for k in range(3)]) for n in range(8)])

    def script(_: int, sent: Answer) -> FhirReply:
        answer = right_answer(sent)
        body = json.dumps(answer).encode()
        if sent["entry"][0]["request"]["url"] != f"Observation/o{VICTIM}-0":
            return FhirReply(body=body)
        if name in HEADS:
            return HEADS[name](body)
        said = WRONG[name](answer)
        return FhirReply(body=said if isinstance(said, bytes) else json.dumps(said).encode(), apply=False)

    with serving(script) as server:
        with pytest.raises(ServiceError) as caught:
            job.send(server.url, batch_size=3, max_concurrent_requests=1, attempts=1)
        assert (caught.value.reference, caught.value.context) == ("send-answer", f"a.ndjson:{VICTIM + 1}")
        assert "canary" not in caught.value.render()
        server.script = None
        assert job.send(server.url, batch_size=3, max_concurrent_requests=1).resources_out == 24
    assert len(server.stored) == 24
    assert sum(sent.count(f"Observation/o{VICTIM}-2") for sent in server.sent) == 2


@pytest.mark.parametrize("location", ["Observation/o/_history/1", "http://localhost:8080/fhir/Observation/o", None])
def test_a_location_may_be_relative_absolute_or_missing(tmp_path: Path, location: str | None) -> None:
    job = DirectLoadJob(tmp_path)
    job.write("a.ndjson", observation("o"))
    result = {"status": "200"} | ({} if location is None else {"location": location})
    answer = {"resourceType": "Bundle", "type": "transaction-response", "entry": [{"response": result}]}
    with serving(lambda *_: FhirReply(body=json.dumps(answer).encode())) as server:
        assert job.send(server.url).resources_out == 1
