"""The one reader of JSON answers: is it JSON, does it say so, is it an object (document 3 §1).

What a service's answer must hold beyond that is the matter of its step.
"""

from __future__ import annotations

import codecs
from typing import Final

import msgspec

from tasks.shared.fhir.resource import UNREADABLE
from tasks.shared.http.answer import Answer

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text: Final = msgspec.json.Decoder(str)


class NotJsonError(Exception):
    """The answer is no JSON object. Its text continues "answered with", and quotes nothing."""


def json_object(answer: Answer) -> dict[str, msgspec.Raw]:
    """Return the members of the JSON object in an answer, each value as it is spelled. Raises ``NotJsonError``."""
    if not answer.says_json:
        raise NotJsonError("a Content-Type that is not JSON")
    body = answer.body.removeprefix(codecs.BOM_UTF8)
    try:
        if not body.isascii():
            body.decode()  # msgspec does not look into strings that it only passes over
        return _members.decode(body)
    except msgspec.ValidationError:
        raise NotJsonError("JSON that is not an object") from None
    except UNREADABLE:
        raise NotJsonError("something that is not JSON") from None


def resource_type(members: dict[str, msgspec.Raw]) -> str:
    """Return the ``resourceType`` among the members of an object; blank for none."""
    try:
        return _text.decode(members.get("resourceType", msgspec.Raw(b'""')))
    except UNREADABLE:
        return ""
