"""What may be in an answer of the server, taken for what it should be and for nothing else."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tasks.shared.http.answer import Answer


def parse_json(body: bytes) -> Any:
    """A JSON body; ``None`` for anything else."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def parse_answer(answer: Answer) -> Any:
    """The JSON in an answer; ``None`` when it is none by its ``Content-Type``, or a key of an object stands twice, of
    which readers keep one value, each its own.
    """
    document = parse_json(answer.body) if answer.says_json else None
    try:
        json.loads(answer.body if document is not None else b"0", object_pairs_hook=_once, parse_int=str)
    except (ValueError, RecursionError):
        return None
    return document


def _once(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise ValueError


def object_of(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def int_of(value: Any) -> int | None:
    """The value if it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
