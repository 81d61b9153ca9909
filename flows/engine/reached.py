"""Check once, before anything depends on it, that the Prefect API set up by the user answers and accepts us.

``4-product.md`` §6: an address that does not answer, or is not a Prefect API, is a clear error within 15 s (exit code
3) in every command, never "no jobs".
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx

from flows.engine.api_address import ApiAddress, configured_api, is_loopback
from flows.engine.server.proof import announced
from flows.engine.server.start import EmbeddedServer
from flows.engine.server.watch import is_alive
from flows.output import patience
from tasks.shared.errors import NetworkError

REACH_SECONDS = 12.0
"""For the whole of it: connecting, a busy server, the last byte of its answer."""


def chosen_api(jobs_dir: Path) -> ApiAddress | None:
    """Return the Prefect API set up by the user, once it has answered; ``None`` for the jobs directory's own.

    If the address is that of the jobs directory's own server, its secret is added.

    Raises:
        NetworkError: the API does not answer, is not a Prefect API, or refuses the credentials.
    """
    configured = configured_api()
    if configured is None:
        return None
    home = own_server(jobs_dir, configured.url)
    if home is not None and is_alive(home):
        running = EmbeddedServer(jobs_dir).running()
        if running is not None:
            return running
    reach(configured)
    return configured


def own_server(jobs_dir: Path, url: str) -> Path | None:
    """Return the ``.prefect`` directory if ``url`` is the jobs directory's own server. Sends no request."""
    home = jobs_dir.absolute() / ".prefect"
    found = announced(home)
    return home if found is not None and found.url == url.rstrip("/") else None


def reach(address: ApiAddress, *, seconds: float = REACH_SECONDS) -> None:
    """Send a small request to a Prefect API. The time limit covers the whole answer.

    Raises:
        NetworkError: names the address, without credentials.
    """
    outcome: list[NetworkError | None] = []
    deadline = time.monotonic() + seconds
    # A thread, abandoned at the limit, because the time limits of a client are for single reads.
    asking = threading.Thread(target=lambda: outcome.append(_probe_api(address, deadline)), daemon=True)
    with patience(f"waiting for the Prefect API at {address.shown}, {seconds:.0f} s at most"):
        asking.start()
        asking.join(seconds)
    found = outcome[0] if outcome else _unreachable(address, "no answer in time")
    if found is not None:
        raise found


def _probe_api(address: ApiAddress, deadline: float) -> NetworkError | None:
    try:
        with httpx.Client(
            headers=dict(address.headers), trust_env=not is_loopback(address), verify=address.trust(),
            timeout=max(1.0, deadline - time.monotonic()),
        ) as client:  # fmt: skip
            while True:
                answer = client.post(f"{address.url}/flows/count", json={})
                if answer.status_code not in {429, 500, 502, 503, 504} or time.monotonic() > deadline - 2:
                    return _judged(address, answer)
                time.sleep(0.5)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return _unreachable(address, type(error).__name__)


def _judged(address: ApiAddress, answer: httpx.Response) -> NetworkError | None:
    """Return the error that an answer shows; ``None`` if it comes from a Prefect API that accepts us."""
    status = answer.status_code
    if status in {401, 403}:
        return NetworkError(
            "prefect-credentials", f"the Prefect API does not accept the credentials (status {status})",
            context=address.shown, status=status,
            hint="set PREFECT_API_AUTH_STRING or PREFECT_API_KEY; for the server of a jobs directory it is the text in "
            "its .prefect/api-secret",
        )  # fmt: skip
    try:
        if status == 200 and isinstance(answer.json(), int):
            return None
    except ValueError:
        pass
    if status >= 500 or status == 429:
        return _unreachable(address, f"status {status}")
    return NetworkError(
        "prefect-not-an-api", f"the server at that address is not a Prefect API (status {status})",
        context=address.shown, status=status,
        hint="check PREFECT_API_URL or the Prefect profile: the address ends in /api",
    )  # fmt: skip


def _unreachable(address: ApiAddress, why: str) -> NetworkError:
    return NetworkError(
        "prefect-unreachable", f"the Prefect API does not answer ({why})",
        context=address.shown,
        hint="check that the server runs, and PREFECT_API_URL or the Prefect profile that names it",
    )  # fmt: skip
