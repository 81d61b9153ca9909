"""The part of Prefect's REST API that the job record needs, without importing Prefect.

Flow-run state, labels and artifacts are durable when a call returns (``architecture.md``, facts about Prefect);
``import prefect`` alone costs more than ``pipeline status`` may take. Everything that runs a flow is in ``runs.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self
from uuid import uuid4

import httpx
import tenacity

from flows.engine.api_address import ApiAddress, is_loopback
from flows.output import patience as waiting
from tasks.shared.errors import NetworkError, TerminalError

Json = dict[str, Any]
Label = str | int | float | bool

FLOW_NAME = "pipeline"
TAG = "sluice"


REPEATABLE = ("/filter", "/set_state", "/labels")
"""Ends of paths whose POST may be repeated: reading, and setting what is set already."""


class NotTakenError(NetworkError):
    """The API has certainly not carried out the call."""


def _kind(status: int) -> type[NetworkError | TerminalError]:
    if status == 503:
        return NotTakenError
    return NetworkError if status >= 500 else TerminalError


class PrefectApi:
    """A small client of one Prefect API. Thread-safe. A command's (``told``) says when it waits, and for how long."""

    def __init__(
        self, address: ApiAddress, *, timeout: float = 60.0, patience: float = 20.0, told: bool = False
    ) -> None:
        self.address = address
        self._patience = patience
        self._longest = timeout + patience
        self._told = told
        self._client = httpx.Client(
            base_url=address.url,
            headers=dict(address.headers),
            timeout=timeout,
            trust_env=not is_loopback(address),
            verify=address.trust(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """One call, repeated while the API is busy; the parsed answer, or ``None`` for 404.

        What creates something is repeated only when the server has certainly done nothing: it could not be reached, or
        answered 503 (on SQLite: the database is locked).

        Raises:
            NetworkError: the API did not answer, or answered 5xx.
            TerminalError: it refused the call.
        """
        once = method == "POST" and not path.endswith(REPEATABLE)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(NotTakenError if once else NetworkError),
            stop=tenacity.stop_after_delay(self._patience),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=2.0),
            reraise=True,
        )
        if not self._told:
            return retrying(self._request, method, path, body)
        with waiting(f"waiting for the Prefect API at {self.address.shown}, {self._longest:.0f} s at most"):
            return retrying(self._request, method, path, body)

    def _request(self, method: str, path: str, body: Any) -> Any:
        try:
            answer = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            kind = NotTakenError if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else NetworkError
            raise kind(
                "prefect-unreachable", f"the Prefect API does not answer ({type(error).__name__})",
                context=self.address.shown, hint="check that the server runs: python -m flows.run server status",
            ) from None  # fmt: skip
        if answer.status_code == 404:
            return None
        if answer.status_code >= 400:
            raise _kind(answer.status_code)(
                "prefect-refused", f"the Prefect API answered {answer.status_code} to {method} {path}",
                context=self.address.shown, status=answer.status_code,
                hint="check PREFECT_API_KEY or PREFECT_API_AUTH_STRING" if answer.status_code in {401, 403} else None,
            )  # fmt: skip
        return answer.json() if answer.content else {}

    def created(self, path: str, body: Json) -> str:
        """Create something; its id. Raises what ``request`` does, and ``TerminalError`` for a 404, too."""
        made = self.request("POST", path, body)
        if made is None:
            raise TerminalError(
                "prefect-refused",
                f"the Prefect API answered 404 to POST {path}",
                context=self.address.shown,
                status=404,
            )
        return str(made["id"])

    def read_run(self, run_id: str) -> Json | None:
        """The flow run, or ``None`` when there is none."""
        run: Json | None = self.request("GET", f"/flow_runs/{run_id}")
        return run

    def runs(self, *, limit: int = 200) -> list[Json]:
        """The flow runs of the flow ``pipeline``, newest first: all of them, ``limit`` with each request."""
        found: list[Json] = []
        while True:
            body = {
                "flows": {"name": {"any_": [FLOW_NAME]}},
                "sort": "EXPECTED_START_TIME_DESC",
                "limit": limit,
                "offset": len(found),
            }
            rows = self.request("POST", "/flow_runs/filter", body) or []
            found.extend(rows)
            if len(rows) < limit:
                return found

    def deployments(self) -> list[Json]:
        """The deployments of the flow that are tagged as ours."""
        body = {
            "flows": {"name": {"any_": [FLOW_NAME]}},
            "deployments": {"tags": {"all_": [TAG]}},
            "limit": 50,
        }
        rows: list[Json] = self.request("POST", "/deployments/filter", body) or []
        return rows

    def run_deployment(self, deployment_id: str, parameters: Mapping[str, Any]) -> str:
        """Start a run through a deployment; the job id. Started once, also when the call is repeated.

        ``None`` is an empty text there, as the deployment's form sends it: not given, whatever the deployment says.
        """
        given = {name: "" if value is None else value for name, value in parameters.items()}
        body = {"parameters": given, "idempotency_key": str(uuid4())}
        return self.created(f"/deployments/{deployment_id}/create_flow_run", body)

    def rename(self, run_id: str, name: str) -> None:
        """Give the run the name a person sees."""
        self.request("PATCH", f"/flow_runs/{run_id}", {"name": name})

    def set_parameters(self, run_id: str, parameters: Mapping[str, Any]) -> None:
        """Replace the run's parameters: a continued job reads the configuration file it is given now."""
        self.request("PATCH", f"/flow_runs/{run_id}", {"parameters": dict(parameters)})

    def set_labels(self, run_id: str, labels: Mapping[str, Label]) -> bool:
        """Merge ``labels`` into the run's; durable when this is true, and ``False`` when there is no such run.

        An empty string clears one.
        """
        return self.request("PATCH", f"/flow_runs/{run_id}/labels", dict(labels)) is not None

    def delete_run(self, run_id: str) -> None:
        """Remove the run and what hangs on it."""
        for artifact in self.artifacts(run_id):
            self.request("DELETE", f"/artifacts/{artifact['id']}")
        self.request("DELETE", f"/flow_runs/{run_id}")

    def artifacts(self, run_id: str) -> list[Json]:
        """The artifacts of a run."""
        body = {"artifacts": {"flow_run_id": {"any_": [run_id]}}, "limit": 200}
        rows: list[Json] = self.request("POST", "/artifacts/filter", body) or []
        return rows

    def create_artifact(self, run_id: str, *, key: str, kind: str, data: Any, description: str = "") -> str:
        """Create an artifact (``kind``: markdown, table, progress); returns its id."""
        body = {"key": key, "type": kind, "data": data, "description": description, "flow_run_id": run_id}
        return self.created("/artifacts/", body)

    def update_artifact(self, artifact_id: str, *, data: Any, description: str | None = None) -> bool:
        """Replace an artifact's data in place; whether it was there."""
        body = {"data": data} | ({"description": description} if description is not None else {})
        return self.request("PATCH", f"/artifacts/{artifact_id}", body) is not None

    def set_state(
        self, run_id: str, kind: str, *, name: str | None = None, message: str = "", force: bool = False
    ) -> None:
        """Set the run's state. ``kind`` is Prefect's state type, such as ``CRASHED``."""
        state = {"type": kind, "name": name or kind.capitalize(), "message": message}
        self.request("POST", f"/flow_runs/{run_id}/set_state", {"state": state, "force": force})

    def run_input(self, run_id: str, key: str) -> Json | None:
        """What somebody answered in a form; ``None`` when nobody did."""
        value = self.request("GET", f"/flow_runs/{run_id}/input/{key}")
        return value if isinstance(value, dict) else None
