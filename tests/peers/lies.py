"""Wrong answers that any service that answers with JSON can give, each with its real cause."""

from __future__ import annotations

import gzip
from dataclasses import dataclass

_JSON = "application/fhir+json"
_RIGHT = b'{"resourceType":"Patient","id":"canary","name":[{"family":"M\xc3\xbcller"}]}'


@dataclass(frozen=True)
class WrongJson:
    """The ``body`` of an answer, and its Content-Type."""

    body: bytes
    kind: str | None = _JSON


WRONG_JSON = {
    # A proxy, a login page, a gateway
    "a login page": WrongJson(b"<!DOCTYPE html><html>canary</html>", "text/html"),
    "a login page that is called JSON": WrongJson(b"<html>canary</html>"),
    "JSON that is called HTML": WrongJson(_RIGHT, "text/html; charset=utf-8"),
    "JSON that is called text": WrongJson(_RIGHT, "text/plain"),
    "JSON without a Content-Type": WrongJson(_RIGHT, None),
    "an empty Content-Type": WrongJson(_RIGHT, ""),
    "a page of text": WrongJson(b"upstream connect error: canary", "text/plain"),
    # Another format of FHIR
    "XML": WrongJson(b'<Patient xmlns="http://hl7.org/fhir"><id value="canary"/></Patient>', "application/fhir+xml"),
    "XML that is called JSON": WrongJson(b'<?xml version="1.0"?><Patient/>'),
    "NDJSON": WrongJson(_RIGHT + b"\n" + _RIGHT, "application/fhir+ndjson"),
    "NDJSON that is called JSON": WrongJson(_RIGHT + b"\n" + _RIGHT),
    "CSV": WrongJson(b"id,name\ncanary,x\n", "text/csv"),
    # A server of another kind, an old version
    "a JSON list": WrongJson(b"[%b]" % _RIGHT),
    "a text": WrongJson(b'"canary"'),
    "a number": WrongJson(b"1"),
    "true": WrongJson(b"true"),
    "null": WrongJson(b"null"),
    # A transfer that was cut, or a body that was damaged on the way
    "nothing": WrongJson(b""),
    "blanks": WrongJson(b" \r\n"),
    "half of the JSON": WrongJson(_RIGHT[:-20]),
    "two documents": WrongJson(_RIGHT + _RIGHT),
    "packed without a word": WrongJson(gzip.compress(_RIGHT)),
    # Another encoding
    "Latin-1": WrongJson(_RIGHT.decode().encode("latin-1")),
    "UTF-16": WrongJson(_RIGHT.decode().encode("utf-16")),
    "nested too deeply": WrongJson(b'{"a":' + b"[" * 9000 + b"]" * 9000 + b"}"),
}
