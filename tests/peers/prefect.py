"""A Prefect API in memory: artifacts and the states of the one run that it knows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from flows.engine.api import PrefectApi
from flows.engine.api_address import ApiAddress


class Prefect:
    """What it keeps; ``run`` is the flow run it knows, and each artifact has its key as its id."""

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
        if path == "/artifacts/":
            self.artifacts[body["key"]] = body | {"id": body["key"]}
            return httpx.Response(201, json={"id": body["key"]})
        if request.method == "PATCH":
            return httpx.Response(204 if self.run else 404)
        if path.endswith("/set_state"):
            self.states.append(body["state"]["name"])
            return httpx.Response(201, json={})
        return httpx.Response(200, json=self.run) if self.run else httpx.Response(404)

    def rows(self, key: str) -> list[dict[str, str]]:
        """A table artifact."""
        return list(json.loads(self.artifacts[key]["data"]))


@contextmanager
def prefect_in_memory() -> Iterator[Prefect]:
    known = Prefect()
    with PrefectApi(ApiAddress(url="http://127.0.0.1")) as known.api:
        known.api.close()
        known.api._client = httpx.Client(transport=httpx.MockTransport(known), base_url="http://127.0.0.1")
        yield known
