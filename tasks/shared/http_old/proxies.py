"""Choice of the proxy for a request: the standard variables (document 3 §1, proxies).

``HTTP_PROXY`` and ``HTTPS_PROXY`` name the proxy for a scheme, ``NO_PROXY`` the hosts that are reached
directly; each also in lower case, which wins. Loopback is never proxied: a sandbox service or a local
server is not something a proxy can reach.

No ``ALL_PROXY`` and no SOCKS, which needs another package.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from tasks.shared.blanked import SECRETS
from tasks.shared.errors import InputError


@dataclass(frozen=True)
class Proxy:
    """One proxy. ``credentials`` (user, password) never show."""

    scheme: str
    host: str
    port: int
    credentials: tuple[str, str] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Return the URL without the credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_proxy(value: str, variable: str) -> Proxy:
    """Parse the proxy in an environment variable; the default scheme is ``http://``.

    Raises ``InputError`` (``proxy-invalid``), which names the variable and not its text: it may hold a
    password.
    """
    problem = "is not a proxy URL"
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        if parts.scheme not in ("http", "https"):
            problem = "names a kind of proxy that is not supported (http and https are)"
        elif parts.hostname:
            user = None
            if parts.username is not None:
                user = (unquote(parts.username), unquote(parts.password or ""))
                SECRETS.pair(*user)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            return Proxy(parts.scheme, parts.hostname, port, user)
    except ValueError:  # a bad port, or an unclosed bracket: the message would quote the text
        pass
    raise InputError(
        "proxy-invalid",
        f"the environment variable {variable} {problem}",
        context=variable,
        hint=f"{variable}=http://[user:password@]host:port",
    ) from None


def is_loopback(host: str) -> bool:
    """Return whether ``host`` (a name or an address, without port and brackets) is this machine."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address is not None and address.is_loopback


class Proxies:
    """The proxies of this process, as the environment names them."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        values = os.environ if environ is None else environ
        self._by_scheme: dict[str, Proxy] = {}
        for scheme in ("http", "https"):
            # A web server's child process gets any request's "Proxy:" header as HTTP_PROXY (CVE-2016-5385).
            upper = () if scheme == "http" and "REQUEST_METHOD" in values else (f"{scheme.upper()}_PROXY",)
            for variable in (f"{scheme}_proxy", *upper):
                if variable in values:
                    if text := values[variable].strip():
                        self._by_scheme[scheme] = parse_proxy(text, variable)
                    break
        excluded = values.get("no_proxy", values.get("NO_PROXY", ""))
        self._excluded = tuple(item.strip().lower() for item in excluded.split(",") if item.strip())

    def select(self, scheme: str, host: str, port: int) -> Proxy | None:
        """Return the proxy for an origin; ``None`` when it is reached directly. ``host`` is without brackets."""
        proxy = self._by_scheme.get(scheme)
        if proxy is None or is_loopback(host):
            return None
        name = host.lower().rstrip(".")
        return None if any(_covers(item, name, port) for item in self._excluded) else proxy


def _covers(item: str, name: str, port: int) -> bool:
    """Return whether an entry of ``NO_PROXY`` (``*``, a domain, an address, a network, with a port or not)
    covers it."""
    if item == "*":
        return True
    address = _address(name)
    if address is not None and "/" in item:
        try:
            return address in ipaddress.ip_network(item, strict=False)
        except ValueError:
            return False
    entry, colon, entry_port = item.rpartition(":")
    if colon and entry_port.isdigit() and (":" not in entry or entry.endswith("]")):
        if int(entry_port) != port:
            return False
        item = entry
    item = item.strip("[]").removeprefix("*").removeprefix(".").rstrip(".")
    if address is not None:
        return _address(item) == address
    return bool(item) and (name == item or name.endswith(f".{item}"))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
