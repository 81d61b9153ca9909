"""TLS and proxies of every outgoing call (docs/services.md), S3 included, and the check of the environment.

``tls.ca_cert_path`` is added to the operating system's trust store and may hold server certificates, too. The variables
``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` name proxies; their lower-case forms win. Loopback is
never proxied. A value that cannot be used is an error that names the variable.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import httpx

from config import TlsConfig
from tasks.shared.blanked import remember_text
from tasks.shared.errors import InputError

KEY: Final = "tls.ca_cert_path"
_KEEP_ALIVE_SECONDS: Final = 4.0  # many servers close an idle connection after 5


def ssl_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return the context of all TLS connections. Raises ``InputError`` for a bundle or ``SSL_CERT_FILE`` that cannot be
    used."""
    return _context(tls.ca_cert_path, tls.insecure_skip_verify, os.environ.get("SSL_CERT_FILE", ""))


@functools.lru_cache(maxsize=4)
def _context(bundle: Path | None, insecure: bool, system: str) -> ssl.SSLContext:
    if system and not Path(system).is_file():
        raise InputError("ssl-cert-file", "the environment variable SSL_CERT_FILE names no file", context=system)
    context = ssl.create_default_context()
    # A server certificate in the bundle is trusted without the CA that signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # Python 3.13 turns strict RFC 5280 checks on; hospital CAs often lack the extensions it asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if bundle is not None:
        _add_bundle(context, bundle)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _add_bundle(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if not isinstance(error, ssl.SSLError) else "it holds no certificate that can be used"
        hint = f"{KEY} must name a PEM file; openssl x509 -inform der -in FILE -out FILE.pem converts a DER file"
        raise InputError(
            "tls-ca-bundle", f"the certificate bundle cannot be read: {reason}", context=f"{KEY} {path}", hint=hint
        ) from None


EXCLUDED: Final = "SLUICE_NO_PROXY"
"""Variable with the user's ``NO_PROXY``, if this process has cut its own to what Prefect's client can read."""


def excluded_hosts(values: Mapping[str, str]) -> list[str]:
    """Return the entries of the environment's ``NO_PROXY``."""
    excluded = values.get(EXCLUDED, values.get("no_proxy", values.get("NO_PROXY", "")))
    return [item.strip().lower() for item in excluded.split(",") if item.strip()]


class Proxies:
    """The proxies that the environment names. Raises ``InputError`` (``proxy-invalid``), which names the variable but
    not its value: it may hold a password."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        values = os.environ if environ is None else environ
        found = {scheme: _named(values, scheme) or _named(values, "all") for scheme in ("http", "https")}
        self.by_scheme = {scheme: url for scheme, url in found.items() if url is not None}
        self._excluded = excluded_hosts(values)

    def select(self, url: httpx.URL) -> str | None:
        """Return the URL of the proxy for a request; ``None`` when its host is reached directly."""
        if (proxy := self.by_scheme.get(url.scheme)) is None:
            return None
        host, port = url.host.lower().rstrip("."), url.port or (443 if url.scheme == "https" else 80)
        if is_loopback(host) or any(_covers(item, host, port) for item in self._excluded):
            return None
        return proxy


_PROBED: Final = [
    (socket.SOL_SOCKET if name.startswith("SO") else socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in {"SO_KEEPALIVE": 1, "TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 30, "TCP_KEEPCNT": 3}.items()
    if hasattr(socket, name)
]
"""Options for TCP keep-alive: a lost host is noticed after two minutes, not after the timeout of a long wait."""


class Transport(httpx.BaseTransport):
    """The connections of one client: direct ones, and those through each proxy. For one thread."""

    def __init__(self, verify: ssl.SSLContext, proxies: Proxies) -> None:
        made = functools.partial(
            httpx.HTTPTransport, verify=verify, limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE_SECONDS),
            socket_options=_PROBED,
        )  # fmt: skip
        self._proxies = proxies
        self._direct = made()
        self._through = {url: made(proxy=url) for url in set(proxies.by_scheme.values())}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request, through its proxy if it has one."""
        proxy = self._proxies.select(request.url)
        return (self._through[proxy] if proxy else self._direct).handle_request(request)

    def close(self) -> None:
        """Close every connection."""
        for transport in (self._direct, *self._through.values()):
            transport.close()


@dataclass(frozen=True)
class Network:
    """The settings of connections. ``environ`` names the proxies (default: the environment of this process);
    ``transport`` makes the connections of one thread."""

    tls: TlsConfig
    environ: Mapping[str, str] | None = None
    transport: Callable[[ssl.SSLContext, Proxies], httpx.BaseTransport] = Transport


def _named(values: Mapping[str, str], scheme: str) -> str | None:
    """Return the URL of the proxy for a scheme; an empty lower-case variable switches the upper-case one off."""
    for variable in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY"):
        if variable in values:
            return _checked(variable, values[variable].strip()) if values[variable].strip() else None
    return None


def _checked(variable: str, text: str) -> str:
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname and parts.port != 0:
            httpx.Proxy(url)
            remember_text(unquote(parts.password or ""))
            return url
    except (ValueError, httpx.InvalidURL):  # the message would quote the text
        pass
    raise InputError(
        "proxy-invalid",
        f"the environment variable {variable} is not the URL of an http proxy",
        context=variable,
        hint=f"{variable}=http://[user:password@]host:port, or unset it",
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


def _covers(item: str, host: str, port: int) -> bool:
    """Return whether an entry of ``NO_PROXY`` covers a host: ``*``, a domain, an address, a network, or a host with a
    port."""
    if item == "*":
        return True
    address = _address(host)
    if address is not None and "/" in item:
        try:
            return address in ipaddress.ip_network(item, strict=False)
        except ValueError:
            return False
    name, colon, number = item.rpartition(":")
    if colon and number.isdigit() and (":" not in name or name.endswith("]")):
        if int(number) != port:
            return False
        item = name
    item = item.strip("[]").removeprefix("*").removeprefix(".").rstrip(".")
    if address is not None:
        return _address(item) == address
    return host == item or host.endswith(f".{item}")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
