"""pydantic's errors as findings: key paths and messages in our words, values left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from config.fields import nearest


@dataclass(frozen=True)
class ModelProblem:
    """One error of a model: the path below it (``a.b[0].c``), and what a finding needs.

    ``message`` is empty for a value outside the range of its key, which says what it must be.
    """

    key: str
    reference: str
    message: str
    hint: str | None


_MESSAGES = {
    "missing": ("required-key", "is required"),
    "extra_forbidden": ("unknown-key", "is not a known key"),
    "tuple_type": ("wrong-type", "must be a list"),
    "model_type": ("wrong-type", "must be a block of keys"),
    "model_attributes_type": ("wrong-type", "must be a block of keys"),
    "too_short": ("out-of-range", "must not be empty"),
    "greater_than_equal": ("out-of-range", ""),
    "less_than_equal": ("out-of-range", ""),
}


def translate(error: ValidationError, names: Sequence[str] = ()) -> Iterator[ModelProblem]:
    """Every error, in the order of the model. ``names`` are those an unknown key may have meant."""
    for detail in error.errors(include_url=False, include_input=False):
        context: dict[str, Any] = detail.get("ctx") or {}
        key = path_of(detail["loc"])
        kind = detail["type"]
        if "message" in context:  # one of our readers
            yield ModelProblem(key, kind, context["message"], context.get("hint") or None)
        else:
            reference, message = _MESSAGES.get(kind, ("wrong-type", "has a value of the wrong kind"))
            hint = _known_names(key, names) if kind == "extra_forbidden" and names else None
            yield ModelProblem(key, reference, message, hint)


def _known_names(key: str, names: Sequence[str]) -> str:
    near = nearest(key.rpartition(".")[2], list(names))
    return f"did you mean {near}?" if near else f"the keys of a rule are {', '.join(names)}"


def path_of(location: tuple[int | str, ...]) -> str:
    """A key path as a person writes it."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.lstrip(".")
