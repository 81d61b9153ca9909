"""Find the Prefect API for a command, and set it for Prefect in this process.

The user's own API is used if ``PREFECT_API_URL``, a Prefect profile or a ``prefect.toml`` names one (``4-product.md``
§6), otherwise the server of the jobs directory (``flows/engine/server/start.py``).

Nothing here imports Prefect, except for its settings (``current_api``).
"""

from __future__ import annotations

import base64
import os
import ssl
import tomllib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flows.engine.server.proof import basic, sign_in_link
from tasks.shared.errors import InputError, TerminalError
from tasks.shared.http import network

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # Where an OpenTelemetry SDK is configured, Prefect's own spans would carry the labels of a run, approvals included.
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
}
"""No telemetry, no outbound connection; a forgotten API address is an error instead of a second server."""


@dataclass(frozen=True)
class ApiAddress:
    """The address of a Prefect API and how to call it. ``home`` and ``secret`` are set for a local server only."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    home: Path | None = None
    secret: str | None = field(default=None, repr=False)

    @classmethod
    def local(cls, home: Path, port: int, secret: str) -> ApiAddress:
        """Return the address of the jobs directory's server, whose directory is ``home``."""
        return cls(f"http://127.0.0.1:{port}/api", {"Authorization": f"Basic {basic(secret)}"}, home, secret)

    @property
    def port(self) -> int:
        """The port; the default of the scheme if the address names none."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def shown(self) -> str:
        """The address as messages may name it: without credentials."""
        try:
            parts = urlsplit(self.url)
        except ValueError:
            return "an address that is not a URL"
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()

    def trust(self) -> ssl.SSLContext | bool:
        """Return ``verify`` for a client: the certificates that Prefect trusts, or ``False`` without TLS."""
        if not self.url.startswith("https"):
            return False  # reading all of them takes 50 ms of CPU, for each client
        return ssl.create_default_context(cafile=os.environ.get("PREFECT_API_SSL_CERT_FILE"))

    @property
    def ui(self) -> str:
        """The address a person opens; it asks for the password where the API has one."""
        return self.shown.removesuffix("/").removesuffix("/api")

    @property
    def link(self) -> str:
        """The address that opens the UI, signed in where that needs the secret of a jobs directory."""
        return self.ui if self.secret is None else sign_in_link(self.ui, self.secret)


def configured_api(environ: Mapping[str, str] | None = None) -> ApiAddress | None:
    """Return the API that the user has set up for Prefect, or ``None``."""
    env = os.environ if environ is None else environ
    settings = _profile(env) | {key: value for key, value in env.items() if key.startswith("PREFECT_")}
    url = settings.get("PREFECT_API_URL") or _prefect_toml_url()
    if not url:
        return None
    headers = {}
    if key := settings.get("PREFECT_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    elif auth := settings.get("PREFECT_API_AUTH_STRING"):
        headers["Authorization"] = "Basic " + base64.b64encode(auth.encode()).decode()
    return ApiAddress(url=url.rstrip("/"), headers=headers)


def current_api() -> ApiAddress:
    """Return the API that Prefect in this process uses, from the settings it read on import.

    Raises:
        InputError: it has none, so nothing would be durable.
    """
    from prefect.settings import get_current_settings

    api, client = get_current_settings().api, get_current_settings().client
    if not api.url:
        raise InputError("no-prefect-api", "no Prefect API is named", hint="set PREFECT_API_URL")
    headers = {}
    if api.auth_string is not None:
        headers["Authorization"] = f"Basic {basic(api.auth_string.get_secret_value())}"
    elif api.key is not None:
        headers["Authorization"] = f"Bearer {api.key.get_secret_value()}"
    for name, value in client.custom_headers.items():
        if name.lower() == "authorization":
            headers["Authorization"] = value
    return ApiAddress(url=str(api.url).rstrip("/"), headers=headers)


def _profile(env: Mapping[str, str]) -> dict[str, str]:
    try:
        home = Path(env.get("PREFECT_HOME") or Path(env.get("HOME") or "~").expanduser() / ".prefect")
    except RuntimeError:
        return {}  # this user has no home directory, and so no profile
    path = Path(env.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    try:
        document = tomllib.loads(path.read_text())
    except OSError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise TerminalError(
            "prefect-profile", f"the Prefect profile file {path} is not valid TOML",
            hint="fix it, or name another with PREFECT_PROFILES_PATH",
        ) from None  # fmt: skip
    name = env.get("PREFECT_PROFILE") or document.get("active", "")
    profile = document.get("profiles", {}).get(name, {})
    return {key: str(value) for key, value in profile.items()}


def _prefect_toml_url() -> str | None:
    try:
        document = tomllib.loads(Path("prefect.toml").read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return None
    url = document.get("api", {}).get("url")
    return str(url) if url else None


def use(address: ApiAddress, jobs_dir: Path) -> None:
    """Set ``address`` for this process's Prefect, before its import, and keep it quiet on the terminal."""
    settings: dict[str, Any] = {
        "PREFECT_API_URL": address.url,
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(jobs_dir.absolute()),
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
        **QUIET,
    }
    if address.home is not None:
        settings |= {
            "PREFECT_HOME": str(address.home),
            "PREFECT_PROFILES_PATH": str(address.home / "profiles.toml"),
            # The server's request check refuses other origins, and its version is ours: both requests are unnecessary.
            "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "false",
            "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
        }
    if address.secret is not None:
        os.environ.pop("PREFECT_API_KEY", None)
        settings["PREFECT_API_AUTH_STRING"] = address.secret
    os.environ.update({key: str(value) for key, value in settings.items()})
    not_proxied(address, os.environ)


def is_loopback(address: ApiAddress) -> bool:
    """Return whether the API is on this machine."""
    try:
        return network.is_loopback(urlsplit(address.url).hostname or "")
    except ValueError:
        return False


def not_proxied(address: ApiAddress, environ: MutableMapping[str, str]) -> None:
    """Exclude an API on this machine from proxies (document 3 §1), for Prefect's own client.

    Existing exceptions are kept. Programs read the lower-case variable first and then ignore the other, so both get the
    same value.
    """
    if not is_loopback(address):
        return
    known = [host.strip() for host in environ.get("no_proxy", environ.get("NO_PROXY", "")).split(",") if host.strip()]
    if "*" not in known:
        known += ["127.0.0.1", "localhost", "::1", str(urlsplit(address.url).hostname)]
    environ["NO_PROXY"] = environ["no_proxy"] = ",".join(dict.fromkeys(known))
