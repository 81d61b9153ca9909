"""The client of Prefect's API: what a 404 means where something is to be made."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from flows.engine.api import PrefectApi
from flows.engine.flow_runs import create_artifact, run_deployment, set_labels
from flows.prefect.address import ApiAddress
from tasks.shared.errors import NetworkError, TerminalError


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda api: run_deployment(api, "d", {}), "/deployments/d/create_flow_run"),
        (lambda api: create_artifact(api, "r", title="t", text=""), "/artifacts/"),
    ],
    ids=["a run of a deployment that was removed", "an artifact"],
)
def test_what_cannot_be_made_because_something_is_not_there_is_an_error(
    make: Callable[[PrefectApi], object], path: str
) -> None:
    with PrefectApi(ApiAddress(url="http://127.0.0.1")) as api:
        api.close()
        transport = httpx.MockTransport(lambda _: httpx.Response(404))
        api._client = httpx.Client(transport=transport, base_url="http://127.0.0.1")
        with pytest.raises(TerminalError) as caught:
            make(api)
    assert (caught.value.reference, caught.value.status) == ("prefect-refused", 404)
    assert f"POST {path}" in caught.value.message


@pytest.mark.parametrize(
    "answer",
    [httpx.Response(200, text="<html>back soon</html>"), httpx.Response(302, headers={"location": "/login"})],
    ids=["a page", "a login"],
)
def test_what_somebody_between_answers_is_an_api_that_is_away(answer: httpx.Response) -> None:
    with PrefectApi(ApiAddress(url="http://127.0.0.1"), patience=0) as api:
        api.close()
        api._client = httpx.Client(transport=httpx.MockTransport(lambda _: answer), base_url="http://127.0.0.1")
        for call in (lambda: api.read_run("r"), lambda: set_labels(api, "r", {"job.error": ""})):
            with pytest.raises(NetworkError) as caught:
                call()
            assert caught.value.reference == "prefect-unreachable"
