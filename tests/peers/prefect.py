"""A Prefect API in memory: artifacts and the states of one run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from config import LoadedConfig
from flows.job.find import Session
from flows.prefect.address import ApiAddress
from flows.prefect.api import PrefectApi
from flows.prefect.artifacts import JOB
from tests.conftest import ask_prefect


class FakePrefect:
    """A Prefect API in memory; ``run`` is its only flow run. Ids of artifacts are random, as the server's are."""

    api: PrefectApi

    def __init__(self) -> None:
        self.run: dict[str, Any] | None = {"state_type": "RUNNING"}
        self.artifacts: dict[str, dict[str, Any]] = {}
        self.states: list[str] = []
        self.asked: list[tuple[str, str]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(request.content or b"null")
        self.asked.append((request.method, path))
        if path == "/artifacts/filter":
            return httpx.Response(200, json=list(self.artifacts.values()))
        if path.startswith("/artifacts/") and request.method == "PATCH":
            known = self.artifacts.get(path.removeprefix("/artifacts/"))
            if known is None:
                return httpx.Response(404)
            known |= body
            return httpx.Response(204)
        if path.startswith("/artifacts/") and request.method == "DELETE":
            del self.artifacts[path.removeprefix("/artifacts/")]
            return httpx.Response(204)
        if path == "/artifacts/":
            made = str(uuid4())
            self.artifacts[made] = body | {"id": made}
            return httpx.Response(201, json={"id": made})
        if request.method == "PATCH":
            return httpx.Response(204 if self.run else 404)
        if path.endswith("/set_state"):
            self.states.append(body["state"]["name"])
            return httpx.Response(201, json={})
        return httpx.Response(200, json=self.run) if self.run else httpx.Response(404)

    @property
    def page(self) -> dict[str, Any]:
        """The one artifact: the page of the job."""
        (found,) = self.artifacts.values()
        return found


def facts(text: str, position: int) -> dict[str, str]:
    """Return the rows of the table that the page of a job has for a step."""
    _, _, behind = text.partition(f"\n## Step {position}, ")
    section = behind.partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return {cells[0]: " | ".join(cells[1:]) for cells in rows[2:]}


def page_of(url: str, job: str) -> str:
    """Return the page of a job at a real server."""
    every = ask_prefect("POST", f"{url}/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [job]}}})
    (found,) = (one for one in every if one["description"].startswith(JOB))
    return str(found["data"])


def recorded(monkeypatch: pytest.MonkeyPatch, command: str, job: Path, shown: Mapping[str, object]) -> None:
    """Let the command of a module find a job in the record, with the release reports ``shown`` at its steps."""

    @contextmanager
    def opened(loaded: LoadedConfig, _: str | None = None) -> Iterator[Session]:
        labels = {f"job.shown.{at}": json.dumps(one) for at, one in shown.items()}
        labels |= {"job.directory": str(job), "job.steps": "local_import,pseudonymizer,wait,send,wait"}
        labels["job.step.1"] = '{"position": 1, "name": "local_import", "state": "completed", "output": "import"}'
        with prefect_in_memory() as known:
            known.run = {"id": job.name, "state_type": "PAUSED", "labels": labels}
            yield Session(loaded, known.api)

    monkeypatch.setattr(f"{command}.opened", opened)


@contextmanager
def prefect_in_memory() -> Iterator[FakePrefect]:
    known = FakePrefect()
    with PrefectApi(ApiAddress(url="http://127.0.0.1")) as known.api:
        known.api._client.close()
        known.api._client = httpx.Client(transport=httpx.MockTransport(known), base_url="http://127.0.0.1")
        yield known
