"""A request to the FHIR server, taken apart, and an answer before it is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from email.utils import formatdate

from deployments.sandbox.common.exchange import Scope
from deployments.sandbox.fhir.outcome import FhirProblem
from deployments.sandbox.fhir.store import Stored

FHIR_JSON = "application/fhir+json;charset=utf-8"
_JSON_TYPES = frozenset({"", "application/json", "application/fhir+json", "application/json+fhir", "text/json"})


@dataclass(frozen=True)
class Call:
    """A request below ``/fhir``."""

    method: str
    segments: list[str]
    """Path segments behind ``/fhir``."""
    query: str
    headers: dict[str, str]
    base: str
    """The base URL as this client sees it, without a trailing slash."""
    body: bytes = b""

    @property
    def is_read(self) -> bool:
        """Whether the method changes nothing."""
        return self.method in ("GET", "HEAD")

    @property
    def has_json(self) -> bool:
        """Whether the body is FHIR JSON; a missing ``Content-Type`` counts as such."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        return kind in _JSON_TYPES

    @property
    def if_match(self) -> str | None:
        """The ``If-Match`` header."""
        return self.headers.get("if-match")

    def prefers(self, what: str) -> bool:
        """Whether ``Prefer: return=…`` asks for it."""
        return f"return={what}".lower() in self.headers.get("prefer", "").lower().replace(" ", "")

    def check_length(self, limit: int | None) -> None:
        """Raise ``FhirProblem`` when the head already says that the body will not be taken."""
        announced = self.headers.get("content-length", "0")
        if limit is not None and announced.isdigit() and int(announced) > limit:
            raise too_large(limit)
        if self.headers.get("content-encoding", "identity") != "identity":
            raise FhirProblem(415, "not-supported", "Compressed bodies are not supported.")


@dataclass(frozen=True)
class Answer:
    """A complete answer."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = FHIR_JSON


def read_call(scope: Scope) -> Call:
    """Take a request apart. Raises ``FhirProblem`` 404 outside ``/fhir``."""
    path: str = scope["path"]
    if path != "/fhir" and not path.startswith("/fhir/"):
        raise FhirProblem(404, "not-found", "The FHIR server is at /fhir.")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    server = scope["server"]
    host = headers.get("host") or f"{server[0]}:{server[1]}"
    return Call(
        method=scope["method"],
        segments=[part for part in path.split("/")[2:] if part],
        query=scope["query_string"].decode("latin-1"),
        headers=headers,
        base=f"{scope['scheme']}://{host}/fhir",
    )


def version_headers(stored: Stored) -> dict[str, str]:
    """``ETag`` and ``Last-Modified`` of a version."""
    return {"etag": f'W/"{stored.version}"', "last-modified": formatdate(stored.updated / 1000, usegmt=True)}


def too_large(limit: int) -> FhirProblem:
    """The body is above the limit, in bytes."""
    return FhirProblem(413, "too-long", f"The body is larger than {limit} bytes.")
