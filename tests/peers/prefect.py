"""A Prefect API that keeps in memory artifacts, and labels and states of one run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from config import LoadedConfig
from flows.job.find import Session
from flows.prefect.address import ApiAddress
from flows.prefect.api import PrefectApi
from flows.prefect.artifacts import JOB
from tests.conftest import ask_prefect
from tests.peers.server import Loopback, Reply, SeenRequest
from tests.peers.services import as_json


class FakePrefect:
    """A Prefect API on loopback; ``run`` is its only flow run. Ids of artifacts are random, as the server's are."""

    api: PrefectApi

    def __init__(self) -> None:
        self.run: dict[str, Any] | None = {"state_type": "RUNNING"}
        self.artifacts: dict[str, dict[str, Any]] = {}
        self.states: list[str] = []
        self.asked: list[tuple[str, str]] = []

    def __call__(self, seen: SeenRequest) -> Reply:
        path, body = seen.target, json.loads(seen.body or b"null")
        self.asked.append((seen.method, path))
        if path == "/artifacts/filter":
            return as_json(list(self.artifacts.values()))
        if path == "/artifacts/":
            made = str(uuid4())
            self.artifacts[made] = body | {"id": made}
            return as_json({"id": made})
        if path.startswith("/artifacts/"):
            return self._change_artifact(seen.method, path.removeprefix("/artifacts/"), body)
        if path.endswith("/set_state"):
            self.states.append(body["state"]["name"])
            return as_json({})
        if self.run is None:
            return Reply(404)
        if seen.method == "PATCH" and path.endswith("/labels"):
            self.run["labels"] = self.run.get("labels", {}) | body
        return Reply(204) if seen.method == "PATCH" else as_json(self.run)

    def _change_artifact(self, method: str, made: str, body: Any) -> Reply:
        if made not in self.artifacts:
            return Reply(404)
        if method == "DELETE":
            del self.artifacts[made]
        else:
            self.artifacts[made] |= body
        return Reply(204)

    @property
    def page(self) -> dict[str, Any]:
        """The one artifact: the page of the job."""
        (found,) = self.artifacts.values()
        return found


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
    with Loopback(known) as server, PrefectApi(ApiAddress(url=server.url)) as known.api:
        yield known
