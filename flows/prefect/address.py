"""Find the Prefect API that the user has set up, and make Prefect use an API in this process.

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

import httpx

from flows.shell import for_server
from tasks.shared.errors import TerminalError
from tasks.shared.http import network

ANSWER_SECONDS = 75.0
"""Seconds to wait for an answer of the API: a server on SQLite can stand still for a minute (docs/sizes.md)."""

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # Where an OpenTelemetry SDK is configured, Prefect's own spans would carry the labels of a run.
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
}
"""Settings that switch off telemetry and outside connections. Without an API's address, Prefect raises an error."""


@dataclass(frozen=True)
class ApiAddress:
    """The address of a Prefect API and the headers of each request. A local server has a ``home`` and a password."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    home: Path | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """The address without credentials, for messages."""
        return str(httpx.URL(self.url).copy_with(username="", password=""))

    @property
    def ui(self) -> str:
        """The address of the UI for a browser."""
        return self.shown.removesuffix("/api")

    @property
    def remedy(self) -> str:
        """The hint for a person if the API does not answer."""
        if self.home is None:
            return "check that the server runs, and any proxy in between"
        return f"if it does not run, start it: {for_server('start', self.home.parent)}"

    @property
    def is_loopback(self) -> bool:
        """True if the address is on this machine."""
        return network.is_loopback(httpx.URL(self.url).host)

    def client(self) -> httpx.Client:
        """Return an HTTP client of this API. It uses no proxy for an API on this machine."""
        verify: ssl.SSLContext | bool = False  # not needed for http: reading all certificates takes 50 ms
        if self.url.startswith("https"):
            verify = ssl.create_default_context(cafile=os.environ.get("PREFECT_API_SSL_CERT_FILE"))
        return httpx.Client(
            base_url=self.url, headers=dict(self.headers), verify=verify, trust_env=not self.is_loopback
        )


def basic(auth_string: str) -> str:
    """Return the ``Authorization`` header for an auth string ``user:password``."""
    return "Basic " + base64.b64encode(auth_string.encode()).decode()


def configured_api(environ: Mapping[str, str] = os.environ) -> ApiAddress | None:
    """Return the API that the environment or the active profile names, or ``None``.

    The address has a ``home`` if ``use`` has set the local server of a jobs directory for this process.

    Raises:
        TerminalError: the file of the profiles cannot be read, or the address is not a URL.
    """
    settings = _profile(environ) | dict(environ)
    url = settings.get("PREFECT_API_URL", "").rstrip("/")
    if not url:
        return None
    try:
        httpx.URL(url)
    except httpx.InvalidURL:
        raise TerminalError("prefect-profile", "the address of the Prefect API is not a URL") from None
    if key := settings.get("PREFECT_API_KEY"):
        return ApiAddress(url, {"Authorization": f"Bearer {key}"})
    auth = settings.get("PREFECT_API_AUTH_STRING")
    home = settings.get("PREFECT_HOME")
    local = Path(home) if home and Path(home, "server.json").is_file() else None
    return ApiAddress(url, {"Authorization": basic(auth)} if auth else {}, local)


def _profile(env: Mapping[str, str]) -> dict[str, str]:
    home = Path(env.get("PREFECT_HOME") or Path(env.get("HOME") or "/") / ".prefect")
    path = Path(env.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    try:
        document = tomllib.loads(path.read_text())
    except OSError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise TerminalError(
            "prefect-profile", f"the file {path} with Prefect's profiles is not valid TOML", hint="correct it"
        ) from None
    profile = document.get("profiles", {}).get(env.get("PREFECT_PROFILE") or document.get("active", ""), {})
    return {key: str(value) for key, value in profile.items()}


def use(address: ApiAddress) -> None:
    """Make Prefect use ``address`` in this process, and print nothing. Call this before Prefect is imported."""
    os.environ.update(QUIET)
    os.environ.update(
        PREFECT_API_URL=address.url,
        PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL="CRITICAL",
        PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW="ignore",
        PREFECT_LOGGING_INTERNAL_LEVEL="CRITICAL",
        PREFECT_LOGGING_EXTRA_LOGGERS="sluice",
    )
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "9")  # a run waits for 17 minutes while the API is away
    os.environ.setdefault("PREFECT_API_REQUEST_TIMEOUT", str(ANSWER_SECONDS))
    if address.home is not None and address.password is not None:
        os.environ.pop("PREFECT_API_KEY", None)
        os.environ.update(PREFECT_HOME=str(address.home), PREFECT_API_AUTH_STRING=address.password)
    excluded = network.excluded_hosts(os.environ)
    os.environ[network.EXCLUDED] = ",".join(excluded)  # for our own requests; Prefect's client cannot read every entry
    hosts = [host.removeprefix("[").removesuffix("]") for host in excluded if host.count(":") < 2 or "/" not in host]
    if address.is_loopback:  # else Prefect's client would ask a proxy for an API on this machine
        hosts += ["127.0.0.1", "localhost", "::1"]
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(dict.fromkeys(hosts))
