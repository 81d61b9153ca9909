"""Call Prefect's REST API and read flow runs, without importing Prefect.

Flow-run state, labels and artifacts are durable when a call returns.
``import prefect`` alone takes longer than ``pipeline status`` may. Everything that runs a flow is in ``runs.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Self

import httpx
import tenacity

from flows.engine.outage import Outage, outage_of
from flows.output import patience as waiting
from flows.prefect.address import ApiAddress
from flows.shell import command
from tasks.shared.errors import NetworkError, TerminalError
from tasks.shared.http.request_log import log_request

Json = dict[str, Any]
Label = str | int | float | bool

FLOW_NAME = "pipeline"
TAG = "sluice"

_PAGE = 200
"""Maximum rows of one answer from Prefect."""

PATIENCE = 20.0
"""Default seconds for which a call is repeated while the API is away or busy."""

_LOOK = 20.0
"""Seconds for an answer that is needed only for a link."""

REPEATABLE = ("/filter", "/set_state", "/labels", "/bulk_delete")
"""Ends of paths whose POST may be repeated: reading, and setting the same value again."""


class NotTakenError(NetworkError):
    """The API has certainly not carried out the call."""


def _kind(status: int) -> type[NetworkError | TerminalError]:
    if status == 503:
        return NotTakenError
    return NetworkError if status >= 500 else TerminalError


class PrefectApi:
    """A small, thread-safe client of one Prefect API. With ``told`` (commands), it reports its waits.

    With ``bridges`` it waits for an API that is away as long as a running job does (``outage.py``).
    """

    def __init__(
        self,
        address: ApiAddress,
        *,
        timeout: float = 60.0,
        patience: float = PATIENCE,
        told: bool = False,
        bridges: bool = False,
    ) -> None:
        self.address = address
        self._patience = patience
        self._longest = timeout + patience
        self._told = told
        self.outage: Outage | None = None
        self._hurry = threading.local()
        if bridges:
            self.bridge()
        self._client = address.client(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def bridge(self) -> None:
        """Wait from now on as long as a running job does."""
        self.outage = outage_of(self.address.url)

    @contextmanager
    def hurried(self, seconds: float) -> Iterator[None]:
        """Make the calls of this thread once, with a time limit for each phase; a failed call can be made later."""
        self._hurry.seconds = seconds
        try:
            yield
        finally:
            self._hurry.seconds = None

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Make a call, repeated while the API is busy. Return the parsed answer, or ``None`` for 404.

        A call that creates something is repeated only if the server has certainly not carried it out: it could not be
        reached, or answered 503 (on SQLite: the database is locked).

        Raises:
            NetworkError: the API did not answer, or answered 5xx.
            TerminalError: it refused the call.
        """
        once = method == "POST" and not path.endswith(REPEATABLE)
        if getattr(self._hurry, "seconds", None) is not None:
            return self._request(method, path, body)
        bridging = self.outage is not None
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(NotTakenError if once else NetworkError),
            stop=self._stop(),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=5.0 if bridging else 2.0),
            reraise=True,
        )
        if bridging or not self._told:
            return retrying(self._request, method, path, body)
        with waiting(f"waiting for the Prefect API at {self.address.shown}, {self._longest:.0f} s at most"):
            return retrying(self._request, method, path, body)

    def _stop(self) -> Callable[[tenacity.RetryCallState], bool]:
        if self.outage is None:
            return tenacity.stop_after_delay(self._patience)
        hopeless = self.outage.begin()
        return lambda _: hopeless()

    def _request(self, method: str, path: str, body: Any) -> Any:
        seconds = getattr(self._hurry, "seconds", None)
        limit = httpx.USE_CLIENT_DEFAULT if seconds is None else httpx.Timeout(seconds)
        begun = time.monotonic()
        # Calls of a step's watcher are not reported: it makes one every two seconds.
        try:
            answer = self._client.request(method, path, json=body, timeout=limit)
        except httpx.HTTPError as error:
            self._found(begun, answered=False)
            if seconds is None:
                log_request(method, f"{self.address.url}{path}", type(error).__name__, begun)
            kind = NotTakenError if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else NetworkError
            raise kind(
                "prefect-unreachable", f"the Prefect API does not answer ({type(error).__name__})",
                context=self.address.shown, hint=f"check that the server runs: {command('server', 'status')}",
            ) from None  # fmt: skip
        if seconds is None:
            url, status = f"{self.address.url}{path}", str(answer.status_code)
            log_request(method, url, status, begun, received=len(answer.content))
        found: Any = {}
        ours = answer.status_code < 500 and not answer.is_redirect
        try:
            found = answer.json() if answer.content and answer.is_success else {}
        except ValueError:
            ours = False
        self._found(begun, answered=ours)
        if answer.status_code < 400 and not ours:  # a proxy reports it away, or requests a login
            raise NetworkError(
                "prefect-unreachable", f"the answer does not come from the Prefect API (status {answer.status_code})",
                context=self.address.shown, hint="check the Prefect server and any proxy in between",
            )  # fmt: skip
        if answer.status_code == 404:
            return None
        if answer.status_code >= 400:
            raise _kind(answer.status_code)(
                "prefect-refused", f"the Prefect API answered {answer.status_code} to {method} {path}",
                context=self.address.shown, status=answer.status_code,
                hint="check PREFECT_API_KEY or PREFECT_API_AUTH_STRING" if answer.status_code in {401, 403} else None,
            )  # fmt: skip
        return found

    def _found(self, begun: float, *, answered: bool) -> None:
        if self.outage is not None and answered:
            self.outage.answered()
        elif self.outage is not None:
            self.outage.failed(time.monotonic() - begun)

    def created(self, path: str, body: Json) -> str:
        """Create an object and return its id. Raises the errors of ``request``, and ``TerminalError`` for a 404."""
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
        """Return the flow run, or ``None`` if it does not exist."""
        run: Json | None = self.request("GET", f"/flow_runs/{run_id}")
        return run

    def runs(
        self,
        run_ids: Sequence[str] | None = None,
        *,
        states: Sequence[str] = (),
        after: datetime | None = None,
        before: datetime | None = None,
    ) -> list[Json]:
        """Return the runs of jobs, newest first: all of them, or those with these ids.

        ``states`` are types of states; ``after`` and ``before`` limit the time for which a run was requested.
        """
        wanted: Json = {"state": {"type": {"any_": list(states)}}} if states else {}
        if run_ids is not None:
            wanted["id"] = {"any_": list(run_ids)}
        times = {"after_": after and after.isoformat(), "before_": before and before.isoformat()}
        if after or before:
            wanted["expected_start_time"] = {key: value for key, value in times.items() if value}
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
        state = {"type": kind, "name": name or kind.capitalize(), "message": message}
        self.request("POST", f"/flow_runs/{run_id}/set_state", {"state": state, "force": True})
