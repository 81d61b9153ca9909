"""Search on one type by ``_id`` and ``identifier``, with pages (FHIR R4, search; document 3 §7 needs no more)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

import msgspec

from deployments.sandbox.common.request import FhirProblem
from deployments.sandbox.fhir.store import ResourceStore, StoredVersion

DEFAULT_COUNT = 20
MAX_COUNT = 5_000
_AFTER = "__after"
_IGNORED = frozenset({"_format", "_pretty", "_total", "_elements"})

Token = tuple[str | None, str | None]


@dataclass(frozen=True)
class TypeSearch:
    """A parsed search."""

    type: str
    ids: list[list[str]]
    identifiers: list[list[Token]]
    count: int
    only_total: bool
    after: str
    given: list[tuple[str, str]]
    """The supported parameters, for the links."""


def read_query(kind: str, text: str, *, strict: bool) -> TypeSearch:
    """Parse the parameters of ``GET Type?…``. Raises ``FhirProblem`` 400; if ``strict`` also for unknown ones."""
    ids: list[list[str]] = []
    identifiers: list[list[Token]] = []
    count, only_total, after = DEFAULT_COUNT, False, ""
    given: list[tuple[str, str]] = []
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
    except ValueError:
        raise FhirProblem(400, "value", "The query is not UTF-8.") from None
    for name, value in pairs:
        match name:
            case "_id":
                ids.append([part for part in _split(value, ",") if part])
            case "identifier":
                identifiers.append([_token(part) for part in _split(value, ",")])
            case "_count":
                count = _number(value)
            case "_summary":
                only_total = value == "count"
            case "__after":
                after = value
                continue
            case _ if name in _IGNORED:
                continue
            case _ if strict:
                known = "Known are _id, identifier, _count, _summary."
                text = f"HAPI-0524: Unknown search parameter for resource type {kind}. {known}"
                raise FhirProblem(400, "processing", text)
            case _:
                continue
        given.append((name, value))
    return TypeSearch(kind, ids, identifiers, min(count, MAX_COUNT), only_total or count == 0, after, given)


def search(store: ResourceStore, query: TypeSearch, base: str) -> bytes:
    """Return the searchset Bundle as JSON, with resources as their stored bytes."""
    total, found = store.find(
        query.type,
        query.ids,
        query.identifiers,
        after=query.after,
        limit=0 if query.only_total else query.count + 1,
    )
    page, more = found[: query.count], len(found) > query.count
    links = [{"relation": "self", "url": _url(base, query, query.after)}]
    if more:
        links.append({"relation": "next", "url": _url(base, query, page[-1].id)})
    bundle = {"resourceType": "Bundle", "type": "searchset", "total": total, "link": links}
    if page:
        bundle["entry"] = [_entry(base, stored) for stored in page]
    return msgspec.json.encode(bundle)


def _entry(base: str, stored: StoredVersion) -> dict[str, object]:
    resource = (
        msgspec.Raw(stored.body)
        if stored.body is not None
        # A searchset has no place for raw content, only for its metadata.
        else {"resourceType": stored.type, "id": stored.id, "contentType": stored.content_type}
    )
    return {"fullUrl": f"{base}/{stored.type}/{stored.id}", "resource": resource, "search": {"mode": "match"}}


def _token(text: str) -> Token:
    """Parse ``value`` (any system), ``|value`` (no system), ``system|`` (any value) or ``system|value``."""
    first, *rest = _split(text, "|")
    value = _unescaped("|".join(rest) if rest else first) or None
    token: Token = (_unescaped(first) if rest else None, value)
    if token in ((None, None), ("", None)):
        raise FhirProblem(400, "value", "A search by identifier needs a system or a value.")
    return token


def _split(text: str, sign: str) -> list[str]:
    """Split at signs that are not escaped by a backslash (FHIR R4, search, "Escaping")."""
    parts = [""]
    for piece in re.findall(r"\\.|.", text, re.DOTALL):
        if piece == sign:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def _unescaped(text: str) -> str:
    return re.sub(r"\\([\\,|$])", r"\1", text)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise FhirProblem(400, "value", "_count must be a whole number.")
    return int(text)


def _url(base: str, query: TypeSearch, after: str) -> str:
    parameters = [*query.given, *([(_AFTER, after)] if after else [])]
    return f"{base}/{query.type}" + (f"?{urlencode(parameters, quote_via=quote)}" if parameters else "")
