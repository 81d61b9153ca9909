"""Read values of the server's answers, each as one type and nothing else."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tasks.shared.http.answer import Answer


def parse_json(body: bytes) -> Any:
    """Parse a JSON body; return ``None`` if it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def parse_answer(answer: Answer) -> Any:
    """Parse the body. Return ``None`` if it is not JSON by its ``Content-Type`` or an object repeats a key."""
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
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def int_of(value: Any) -> int | None:
    """Return the value if it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
