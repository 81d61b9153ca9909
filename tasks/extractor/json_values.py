"""What may be in an answer of the server, taken for what it should be and for nothing else."""

from __future__ import annotations

from typing import Any

import msgspec


def parse_json(body: bytes) -> Any:
    """A JSON body; ``None`` for anything else."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def object_of(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def int_of(value: Any) -> int | None:
    """The value if it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
