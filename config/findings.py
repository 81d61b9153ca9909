"""Findings: the problems of a configuration, collected and raised together.

A finding never quotes a value of the configuration, except durations, URLs that were checked to hold no credentials,
and the name of a file that was read: a value may be a secret that stands in the wrong place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from config.fields import nearest

if TYPE_CHECKING:
    from config.loader import LoadedConfig


@dataclass(frozen=True)
class Finding:
    """One problem, named by a stable kebab-case ``reference`` and the key path it is about.

    ``where`` is the source that gave the value (``file:line``, ``environment APP_…``, ``flag``) and ``line`` the
    line of the configuration file, when there is one.
    """

    reference: str
    key: str
    message: str
    hint: str | None = None
    level: Literal["error", "warning"] = "error"
    line: int | None = None
    where: str | None = None

    def render(self) -> str:
        """Return the text shown to a person (``4-product.md`` §2): message, context, hint."""
        lines = [f"{self.level}[{self.reference}]: {self.message}"]
        context = " ".join(part for part in (self.key, f"({self.where})" if self.where else "") if part)
        if context:
            lines.append(f"  {context}")
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


def about(key: str, predicate: str) -> str:
    """Return a message about a key: its last name (with an index, if any), then ``predicate``."""
    return f"{key.rpartition('.')[2]} {predicate}"


class ConfigError(Exception):
    """The configuration is rejected (exit code 2); ``findings`` holds everything that was found, errors first.

    ``partial`` is what can be read of it, with defaults in place of wrong values, to look for the files it names;
    ``None`` if there is nothing to read.
    """

    exit_code = 2

    def __init__(self, findings: Iterable[Finding], *, partial: LoadedConfig | None = None) -> None:
        self.findings: tuple[Finding, ...] = tuple(findings)
        self.partial = partial
        super().__init__("\n\n".join(finding.render() for finding in self.findings))


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
    """Yield every error of pydantic in our words, in the order of the model.

    ``names`` are those an unknown key may have meant.
    """
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
    """Return a key path as a person writes it."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.lstrip(".")
