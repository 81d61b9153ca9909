"""``POST /fhir/ViewDefinition/$run`` over HTTP (document 3 §5)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import httpx
import pytest

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.flattening.app import FlatteningOptions, flattening_service
from tests.deployments.sandbox.conftest import SandboxClient, Start, starting
from tests.deployments.sandbox.flattening.support import Json, columns, one, parameters, view

RUN = "/fhir/ViewDefinition/$run?_format=ndjson"
FHIR = "application/fhir+json"
NDJSON = "application/x-ndjson"
PATIENT: Json = {"resourceType": "Patient", "id": "kanarienvogel", "name": [{"family": "Gelb"}, {"family": "Grün"}]}
NAMES = view({"column": columns("id")}, {"forEach": "name", "column": columns("family", "use")})


@pytest.fixture
def begin() -> Iterator[Start]:
    with starting(flattening_service, FlatteningOptions) as start:
        yield start


@pytest.fixture
def service(begin: Start) -> SandboxClient:
    return begin()


@pytest.fixture(scope="module")
def quirky() -> Iterator[SandboxClient]:
    """The service with the deployed service's quirks, for tests that change no state."""
    with serve_in_thread(flattening_service()) as served, SandboxClient(served.url) as client:
        yield client


@pytest.fixture(scope="module")
def plain() -> Iterator[SandboxClient]:
    """The service without the quirks."""
    options = FlatteningOptions(errors_500=False, exact_accept=False)
    with serve_in_thread(flattening_service(options)) as served, SandboxClient(served.url) as client:
        yield client


def post(
    client: httpx.Client, content: bytes, path: str = RUN, kind: str = FHIR, accept: str = NDJSON, **more: str
) -> httpx.Response:
    return client.post(path, content=content, headers={"content-type": kind, "accept": accept, **more})


def refusal(response: httpx.Response) -> str:
    assert response.headers["content-type"].startswith(FHIR)
    body = response.json()
    assert body["resourceType"] == "OperationOutcome"
    (issue,) = body["issue"]
    assert issue["severity"] == "error"
    text: str = issue["diagnostics"]
    return text


def test_a_view_and_resources_are_answered_with_rows_as_ndjson(quirky: SandboxClient) -> None:
    response = post(quirky, parameters(NAMES, [PATIENT, {**PATIENT, "id": "2", "name": [{"use": "old"}]}]))
    assert response.status_code == 200
    assert response.headers["content-type"] == NDJSON
    assert response.content.decode() == (
        '{"id":"kanarienvogel","family":"Gelb"}\n{"id":"kanarienvogel","family":"Grün"}\n{"id":"2","use":"old"}\n'
    )


def test_null_columns_are_written_when_the_service_is_told_so(begin: Start) -> None:
    response = post(begin(null_columns=True), parameters(NAMES, [PATIENT]))
    assert json.loads(response.text.splitlines()[0]) == {"id": "kanarienvogel", "family": "Gelb", "use": None}


@pytest.mark.parametrize(
    "accept", ["*/*", "application/x-ndjson, */*", "application/x-ndjson;q=1", "application/json", ""]
)
def test_accept_has_to_be_exactly_ndjson(quirky: SandboxClient, accept: str) -> None:
    response = post(quirky, parameters(NAMES, [PATIENT]), accept=accept)
    assert response.status_code == 500
    assert NDJSON in refusal(response)


FAILURES: list[tuple[str, bytes, Json, int]] = [
    ("a body that is no JSON", b"{", {}, 400),
    ("a body that is no Parameters", b'{"resourceType":"Patient"}', {}, 400),
    ("no view", parameters(NAMES, [PATIENT]).replace(b"viewDefinition", b"view"), {}, 400),
    ("a resource that is none", parameters(NAMES, ["[]"]), {}, 400),
    ("an unknown key", parameters({**NAMES, "url": "http://example.org/v"}, [PATIENT]), {}, 422),
    ("a path that is none", parameters(one("name."), [PATIENT]), {}, 422),
    ("an unknown constant", parameters(one("%nope"), [PATIENT]), {}, 422),
    ("another type", parameters(NAMES, [PATIENT, {"resourceType": "Group", "id": "g"}]), {}, 422),
    ("several values", parameters(one("name.family"), [PATIENT]), {}, 422),
    ("a condition that is none", parameters(one("id", where=[{"path": "id"}]), [PATIENT]), {}, 422),
    ("a calculation that fails", parameters(one("id > 1"), [PATIENT]), {}, 422),
    ("another content type", parameters(NAMES, [PATIENT]), {"kind": "text/plain"}, 415),
    ("no format", parameters(NAMES, [PATIENT]), {"path": "/fhir/ViewDefinition/$run"}, 400),
    ("another format", parameters(NAMES, [PATIENT]), {"path": "/fhir/ViewDefinition/$run?_format=csv"}, 400),
]


@pytest.mark.parametrize(
    ("body", "more", "status"), [each[1:] for each in FAILURES], ids=[each[0] for each in FAILURES]
)
def test_every_failure_is_500_with_the_text_of_the_exception(
    quirky: SandboxClient, plain: SandboxClient, body: bytes, more: dict[str, str], status: int
) -> None:
    deployed = post(quirky, body, **more)
    assert deployed.status_code == 500
    assert deployed.json()["issue"][0]["code"] == "exception"
    assert "Error: " in refusal(deployed)
    told_apart = post(plain, body, **more)
    assert told_apart.status_code == status
    assert refusal(told_apart) == refusal(deployed)


@pytest.mark.slow
def test_a_failure_in_the_last_resource_leaves_no_row_behind(quirky: SandboxClient) -> None:
    patients: list[Json] = [{**PATIENT, "id": str(number)} for number in range(5_000)]
    response = post(quirky, parameters(NAMES, [*patients, {"resourceType": "Group"}]))
    assert response.status_code == 500
    assert "Group" in refusal(response)


def test_the_answer_may_quote_data_but_the_log_does_not(
    service: SandboxClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        response = post(service, parameters(one("name.family"), [PATIENT]))
    assert '["Gelb","Grün"]' in refusal(response)
    assert "Gelb" not in caplog.text
    assert "Gelb" not in json.dumps(service.request_log())


def test_metadata_is_a_capability_statement(quirky: SandboxClient) -> None:
    response = quirky.get("/fhir/metadata")
    assert response.status_code == 200
    statement = response.json()
    assert statement["resourceType"] == "CapabilityStatement"
    assert "not for production" in statement["rest"][0]["documentation"]
