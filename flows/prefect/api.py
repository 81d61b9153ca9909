"""Call Prefect's REST API for flow runs, their labels and states.

A change is durable when the call returns. Nothing here imports Prefect: that takes longer than ``pipeline status`` may.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any, Final, Self

import httpx
import tenacity

from flows.output import AFTER, patience
from flows.prefect.address import ANSWER_SECONDS, ApiAddress
from tasks.shared.errors import InputError, NetworkError, TerminalError
from tasks.shared.http.request_log import log_request

Json = dict[str, Any]
Label = str | int | float | bool

FLOW_NAME: Final = "pipeline"
DEPLOYMENT: Final = "sluice"
"""The deployment that runs detached jobs."""

COMMAND_SECONDS: Final = 20.0
"""Seconds for which a command repeats a call while the API is away or busy."""

JOB_SECONDS: Final = 1040.0
"""Seconds for which a running job repeats a call: as long as Prefect's client with 9 retries (``address.use``)."""

CONNECT_SECONDS: Final = 7.0

_PAGE = 200
"""Maximum rows of one answer from Prefect."""

_REPEATABLE = ("/filter", "/set_state", "/labels")
"""Ends of paths whose POST may be repeated: it only reads, or sets the same value again."""


class NotTakenError(NetworkError):
    """The API has certainly not carried out the call."""


def reach(address: ApiAddress) -> None:
    """Send a small request, so that a wrong address is found before anything depends on it.

    Raises:
        NetworkError: the API does not answer, or is not a Prefect API.
        TerminalError: the API refused the credentials.
    """
    with _told(address, AFTER), PrefectApi(address, patience=0) as api:
        found = api.request("POST", "/flows/count", {})
    if not isinstance(found, int):
        raise NetworkError(
            "prefect-not-an-api", "the server at that address is not a Prefect API", context=address.shown,
            hint="check PREFECT_API_URL or the Prefect profile: the address ends in /api",
        )  # fmt: skip


def _told(address: ApiAddress, after: float) -> AbstractContextManager[None]:
    """Print that the server does not answer, and what to do, if the block takes longer than ``after`` seconds."""
    return patience(f"waiting for the Prefect server at {address.shown}\n  {address.remedy}", after=after)


class PrefectApi:
    """A small, thread-safe client of one Prefect API, which repeats a call for ``patience`` seconds."""

    def __init__(
        self, address: ApiAddress | None, *, timeout: float = ANSWER_SECONDS, patience: float = COMMAND_SECONDS
    ) -> None:
        if address is None:
            raise InputError("no-prefect-api", "no Prefect API is named", hint="set PREFECT_API_URL")
        self.address = address
        self.away = False
        """True after the API was away for ``patience`` seconds. Until it answers again, calls are not repeated."""
        self.patience = patience
        self.timeout = timeout
        self._client = address.client()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def hurried(self, seconds: float) -> PrefectApi:
        """Return a client that does not repeat calls. Connecting, sending and reading may each take ``seconds``."""
        other = copy(self)
        other.patience, other.timeout = 0, seconds
        return other

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Make a call, repeated while the API is away or busy. Return the parsed answer, or ``None`` for 404.

        A call that creates something is repeated only if the server has certainly not carried it out: it could not be
        reached, or answered 503 (on SQLite: the database is locked).

        Raises:
            NetworkError: the API did not answer, or answered 5xx.
            TerminalError: the API refused the call.
        """
        if self.away or not self.patience:
            return self._call(method, path, body)
        creates = method == "POST" and not path.endswith(_REPEATABLE)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(NotTakenError if creates else NetworkError),
            stop=tenacity.stop_after_delay(self.patience),
            wait=tenacity.wait_exponential(multiplier=0.05, max=5.0),
            reraise=True,
        )
        soon = AFTER if self.patience <= COMMAND_SECONDS else 3.0  # a running job often waits for a busy server
        with _told(self.address, soon):
            begun = time.monotonic()
            try:
                return retrying(self._call, method, path, body)
            except NetworkError:
                self.away = time.monotonic() - begun >= self.patience
                raise

    def _call(self, method: str, path: str, body: Any) -> Any:
        begun = time.monotonic()
        url = f"{self.address.url}{path}"
        timeout = httpx.Timeout(self.timeout, connect=min(self.timeout, CONNECT_SECONDS))
        try:
            answer = self._client.request(method, path, json=body, timeout=timeout)
            found = answer.json() if answer.is_success and answer.content else {}
        except httpx.HTTPError as error:
            log_request(method, url, type(error).__name__, begun)
            kind = NotTakenError if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else NetworkError
            raise self._away(kind, f"the Prefect API does not answer ({type(error).__name__})") from None
        except ValueError:  # a proxy answered with a page: an outage, or a login
            raise self._away(NetworkError, "the answer does not come from the Prefect API") from None
        log_request(method, url, str(answer.status_code), begun)
        if answer.is_success:
            self.away = False
            return found
        return None if answer.status_code == 404 else self._refuse(method, path, answer.status_code)

    def _away(self, kind: type[NetworkError], message: str) -> NetworkError:
        return kind("prefect-unreachable", message, context=self.address.shown, hint=self.address.remedy)

    def _refuse(self, method: str, path: str, status: int) -> None:
        ours = 400 <= status < 500  # a redirect comes from a proxy that wants a login
        kind: type[NetworkError | TerminalError] = TerminalError if ours else NetworkError
        raise (NotTakenError if status == 503 else kind)(
            "prefect-refused", f"the Prefect API answered {status} to {method} {path}", status=status,
            context=self.address.shown,
            hint="check PREFECT_API_KEY or PREFECT_API_AUTH_STRING" if status in {401, 403} else None,
        )  # fmt: skip

    def created(self, path: str, body: Json) -> str:
        """Create an object and return its id. Raises the errors of ``request``, and ``TerminalError`` for a 404."""
        made = self.request("POST", path, body)
        if made is None:
            self._refuse("POST", path, 404)
        return str(made["id"])

    def read_run(self, run_id: str) -> Json | None:
        """Return the flow run, or ``None`` if it does not exist."""
        run: Json | None = self.request("GET", f"/flow_runs/{run_id}")
        return run

    def runs(self, states: Sequence[str] = ()) -> list[Json]:
        """Return the runs of jobs, newest first. ``states`` are Prefect's state types; without any, all runs."""
        wanted: Json = {"state": {"type": {"any_": list(states)}}} if states else {}
        body = {"flows": {"name": {"any_": [FLOW_NAME]}}, "flow_runs": wanted, "sort": "EXPECTED_START_TIME_DESC"}
        return self.read_all("/flow_runs/filter", body)

    def read_all(self, path: str, body: Json) -> list[Json]:
        """Return all objects that match a filter, ``_PAGE`` with each request."""
        found: list[Json] = []
        while True:
            rows = self.request("POST", path, body | {"limit": _PAGE, "offset": len(found)}) or []
            found.extend(rows)
            if len(rows) < _PAGE:
                return found

    def set_state(self, run_id: str, kind: str, *, name: str | None = None, message: str = "") -> None:
        """Set the run's state, whatever it was. ``kind`` is Prefect's state type, such as ``CRASHED``."""
        state: Json = {"type": kind, "name": name or kind.capitalize(), "message": message}
        self.request("POST", f"/flow_runs/{run_id}/set_state", {"state": state, "force": True})

    def set_labels(self, run_id: str, labels: Mapping[str, Label]) -> None:
        """Merge ``labels`` into those of the run. An empty text clears a label. A missing run is no error."""
        self.request("PATCH", f"/flow_runs/{run_id}/labels", dict(labels))

    def change(self, run_id: str, **fields: Any) -> None:
        """Replace fields of the run: ``name``, ``parameters``."""
        self.request("PATCH", f"/flow_runs/{run_id}", fields)


def run_deployment(api: PrefectApi, parameters: Mapping[str, Any]) -> str:
    """Start a run through the deployment of the flow, and return its job id.

    Like the deployment's form, this sends ``None`` as an empty text. A default of the deployment does not apply then.

    Raises:
        InputError: there is no such deployment.
    """
    found = api.request("GET", f"/deployments/name/{FLOW_NAME}/{DEPLOYMENT}")
    if found is None:
        raise InputError(
            "no-deployment", f"there is no deployment {FLOW_NAME}/{DEPLOYMENT}", context=api.address.ui,
            hint="create one with deployments/prefect.yaml, or leave out --detach",
        )  # fmt: skip
    given = {key: "" if value is None else value for key, value in parameters.items()}
    return api.created(f"/deployments/{found['id']}/create_flow_run", {"parameters": given})
