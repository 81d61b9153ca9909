"""Find the Prefect API that the user has set up, check that it answers, and set it for Prefect in this process.

Nothing here imports Prefect, because that takes more than a second.
"""

from __future__ import annotations

import base64
import os
import ssl
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from flows.output import patience
from tasks.shared.errors import InputError, NetworkError, TerminalError
from tasks.shared.http import network

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # Where an OpenTelemetry SDK is configured, Prefect's own spans would carry the labels of a run.
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
}
"""No telemetry, no connection that nobody asked for; a missing address of the API is an error."""

REACH = httpx.Timeout(10.0, connect=4.0)
"""Limits of the request that checks an API: less than 15 s in all (``4-product.md`` §6)."""


@dataclass(frozen=True)
class ApiAddress:
    """The address of a Prefect API and the headers of each request. A local server has a ``home`` and a password."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    home: Path | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def local(cls, home: Path, port: int, password: str) -> ApiAddress:
        """Return the address of the jobs directory's server, whose directory is ``home``."""
        return cls(f"http://127.0.0.1:{port}/api", {"Authorization": basic(password)}, home, password)

    @property
    def shown(self) -> str:
        """The address as messages may name it: without credentials."""
        try:
            parts = urlsplit(self.url)
        except ValueError:
            return "an address that is not a URL"
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()

    @property
    def ui(self) -> str:
        """The address of the UI for a browser."""
        return self.shown.removesuffix("/").removesuffix("/api")

    @property
    def is_loopback(self) -> bool:
        """True if the API is on this machine."""
        try:
            return network.is_loopback(urlsplit(self.url).hostname or "")
        except ValueError:
            return False

    def client(self, timeout: float | httpx.Timeout = 60.0) -> httpx.Client:
        """Return an HTTP client of this API; no proxy is used for one on this machine."""
        verify: ssl.SSLContext | bool = False  # reading all certificates takes 50 ms
        if self.url.startswith("https"):
            verify = ssl.create_default_context(cafile=os.environ.get("PREFECT_API_SSL_CERT_FILE"))
        return httpx.Client(
            base_url=self.url, headers=dict(self.headers), timeout=timeout, verify=verify,
            trust_env=not self.is_loopback,
        )  # fmt: skip


def basic(auth_string: str) -> str:
    """Return the ``Authorization`` header for an auth string ``user:password``."""
    return "Basic " + base64.b64encode(auth_string.encode()).decode()


def configured_api(environ: Mapping[str, str] | None = None) -> ApiAddress | None:
    """Return the API that the environment, a ``prefect.toml`` or the active profile names, or ``None``."""
    env = os.environ if environ is None else environ
    settings = _profile(env) | _prefect_toml() | {key: text for key, text in env.items() if key.startswith("PREFECT_")}
    url = settings.get("PREFECT_API_URL")
    if not url:
        return None
    if key := settings.get("PREFECT_API_KEY"):
        return ApiAddress(url.rstrip("/"), {"Authorization": f"Bearer {key}"})
    auth = settings.get("PREFECT_API_AUTH_STRING")
    return ApiAddress(url.rstrip("/"), {"Authorization": basic(auth)} if auth else {})


def running_api() -> ApiAddress:
    """Return the API of the run that this process executes.

    Raises:
        InputError: none is named, so nothing would be durable.
    """
    found = configured_api()
    if found is None:
        raise InputError("no-prefect-api", "no Prefect API is named", hint="set PREFECT_API_URL")
    return found


def _profile(env: Mapping[str, str]) -> dict[str, str]:
    home = Path(env.get("PREFECT_HOME") or Path(env.get("HOME") or "/") / ".prefect")
    document = _toml(Path(env.get("PREFECT_PROFILES_PATH") or home / "profiles.toml"))
    profile = document.get("profiles", {}).get(env.get("PREFECT_PROFILE") or document.get("active", ""), {})
    return {key: str(value) for key, value in profile.items()}


def _prefect_toml() -> dict[str, str]:
    return {
        f"PREFECT_API_{key.upper()}": str(value) for key, value in _toml(Path("prefect.toml")).get("api", {}).items()
    }


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise TerminalError(
            "prefect-profile", f"the file {path} with Prefect's settings is not valid TOML", hint="correct it"
        ) from None


def reach(address: ApiAddress) -> None:
    """Send a small request, so that a wrong address is found before anything depends on it.

    Raises:
        NetworkError: the API does not answer, is not a Prefect API, or refuses the credentials.
    """
    try:
        with patience(f"waiting for the Prefect API at {address.shown}"), address.client(REACH) as client:
            answer = client.post("/flows/count", json={})
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise _unreachable(address, type(error).__name__) from None
    status = answer.status_code
    if status in {401, 403}:
        raise NetworkError(
            "prefect-credentials", f"the Prefect API does not accept the credentials (status {status})",
            context=address.shown, status=status, hint="set PREFECT_API_AUTH_STRING or PREFECT_API_KEY",
        )  # fmt: skip
    if status >= 500 or status == 429:
        raise _unreachable(address, f"status {status}")
    if status != 200 or not answer.content.strip().isdigit():
        raise NetworkError(
            "prefect-not-an-api", f"the server at that address is not a Prefect API (status {status})",
            context=address.shown, status=status,
            hint="check PREFECT_API_URL or the Prefect profile: the address ends in /api",
        )  # fmt: skip


def _unreachable(address: ApiAddress, why: str) -> NetworkError:
    return NetworkError(
        "prefect-unreachable", f"the Prefect API does not answer ({why})", context=address.shown,
        hint="check that the server runs, and PREFECT_API_URL or the Prefect profile that names it",
    )  # fmt: skip


def use(address: ApiAddress) -> None:
    """Set ``address`` for Prefect in this process, before its import, and keep Prefect quiet on the terminal."""
    os.environ.update(QUIET)
    os.environ.update(
        PREFECT_API_URL=address.url,
        PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL="CRITICAL",
        PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW="ignore",
        PREFECT_LOGGING_INTERNAL_LEVEL="CRITICAL",
        PREFECT_LOGGING_EXTRA_LOGGERS="sluice",
    )
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "9")  # a run waits for 17 minutes while the API is away
    if address.home is not None and address.password is not None:
        os.environ.pop("PREFECT_API_KEY", None)
        os.environ.update(PREFECT_HOME=str(address.home), PREFECT_API_AUTH_STRING=address.password)
    if address.is_loopback:  # else Prefect's client would ask a proxy for an API on this machine
        known = os.environ.get("no_proxy", os.environ.get("NO_PROXY", "")).split(",")
        hosts = [*filter(None, known), "127.0.0.1", "localhost", "::1"]
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(dict.fromkeys(hosts))
