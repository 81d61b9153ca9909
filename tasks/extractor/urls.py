"""Make, resolve and recognise the URLs of an extraction (docs/services.md)."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from tasks.shared.errors import ServiceError
from tasks.shared.http.answer import place
from tasks.shared.http.url_names import is_url

_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HOST: Final = re.compile(r"[A-Za-z0-9_.-]+:[0-9]{1,5}|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
_UUID: Final = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_JOB_ID: Final = re.compile(_UUID, re.IGNORECASE | re.ASCII)
_RESULT: Final = re.compile(rf"/fhir/(__status/{_UUID}/?|(extraction|result)/.+)\Z", re.IGNORECASE)


def service_url(base_url: str, *segments: str) -> str:
    """Return a URL under ``{base_url}/fhir`` with escaped segments, so that none leads elsewhere."""
    path = "/".join(quote(segment, safe="$") for segment in segments)
    return f"{base_url.rstrip('/')}/fhir/{path}"


def resolve(url: str, base_url: str) -> str:
    """Return a URL of the server as an absolute URL.

    Absolute URLs are kept. A host without a scheme (``//host/path``, ``host:port/path``, ``host.name/path``, the host
    of ``base_url``) gets the scheme of ``base_url``. Everything else is a path under ``base_url``, with or without the
    path of ``base_url``. Raises ``ServiceError`` (``result-url``) for anything but an HTTP URL.
    """
    absolute = _absolute(url.strip(), base_url)
    try:
        usable = is_url(absolute) and bool(urlsplit(absolute).hostname)
    except ValueError:
        usable = False
    if not usable:
        hint = "see the base URL in the settings of the extraction server"
        what = "extractor: the server gave a URL that cannot be used"
        raise ServiceError("result-url", what, context=place(absolute), hint=hint)
    return absolute


def _absolute(text: str, base_url: str) -> str:
    if _SCHEME.match(text):
        return text
    base, path = urlsplit(base_url), text.lstrip("/")
    host, slash, _ = path.partition("/")
    known = host.lower() in {base.netloc.lower(), base.hostname, "localhost"} or _HOST.fullmatch(host) is not None
    if known and (text.startswith("//") or (slash and not text.startswith("/"))):
        return f"{base.scheme}://{path}"
    prefix = base.path.strip("/")
    if prefix and text.startswith("/") and f"{path}/".startswith(f"{prefix}/"):
        path = path[len(prefix) :].lstrip("/")
    return f"{base_url.rstrip('/')}/{path}"


def is_result_url(url: str) -> bool:
    """Return whether a URL is that of a complete result."""
    try:
        return _RESULT.search(urlsplit(url).path) is not None
    except ValueError:
        return False


def job_id_of(status_url: str) -> str:
    """Return the id of the extraction job: the last path segment of its status URL, or an empty text."""
    return unquote(urlsplit(status_url).path.rstrip("/").rpartition("/")[2])


def is_job_id(text: str) -> bool:
    """Return whether the text is the id of an extraction job: a UUID."""
    return _JOB_ID.fullmatch(text) is not None


def same_host(url: str, base_url: str) -> bool:
    """Return whether two URLs have the same host name, whatever the port."""
    return (urlsplit(url).hostname or "").lower() == (urlsplit(base_url).hostname or "").lower()
