"""Findings: the problems of a configuration, collected and raised together.

A finding never quotes a value, which may be a secret in the wrong place. The exceptions are durations, names of files
that were read, and URLs that were checked to hold no credentials.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from config.types import nearest, shown


@dataclass(frozen=True)
class Finding:
    """One problem: a stable ``reference``, the path of the ``key``, and ``where`` its value was set."""

    reference: str
    key: str
    message: str
    hint: str | None = None
    level: Literal["error", "warning"] = "error"
    where: str | None = None

    def render(self) -> str:
        """Return the text shown to a person: message, context, hint."""
        lines = [f"{self.level}[{self.reference}]: {self.message}"]
        if self.key or self.where:
            lines.append("  " + " ".join(part for part in (self.key, f"({self.where})" if self.where else "") if part))
        return "\n".join(lines + ([f"hint: {self.hint}"] if self.hint else []))


class ConfigError(Exception):
    """The configuration is rejected. Carries every finding, the errors first."""

    exit_code = 2

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings: tuple[Finding, ...] = tuple(sorted(findings, key=lambda finding: finding.level))
        super().__init__("\n\n".join(finding.render() for finding in self.findings))


_MESSAGES = {
    "missing": ("required-key", "is required"),
    "extra_forbidden": ("unknown-key", "is not a known key"),
    "tuple_type": ("wrong-type", "must be a list"),
    "model_type": ("wrong-type", "must be a block of keys"),
    "bool_parsing": ("wrong-type", "must be true or false"),
    "bool_type": ("wrong-type", "must be true or false"),
    "int_type": ("wrong-type", "must be a whole number"),
    "string_too_short": ("out-of-range", "must not be empty"),
    "too_short": ("out-of-range", "must not be empty"),
    "greater_than_equal": ("out-of-range", "must be at least {ge}"),
    "less_than_equal": ("out-of-range", "must be at most {le}"),
    "greater_than": ("out-of-range", "must be longer than zero"),
    "enum": ("invalid-choice", "must be {expected}"),
    "literal_error": ("invalid-choice", "must be {expected}"),
}
"""Type of a pydantic error → our reference and message. Fields in braces come from the context of the error."""
_OTHER = "has a value of the wrong kind"


def of_pydantic(error: ValidationError, names: Iterable[str] = ()) -> Iterator[Finding]:
    """Yield each error of pydantic as a finding. The hint for an unknown key is taken from ``names``."""
    for detail in error.errors(include_url=False, include_input=False):
        context: dict[str, Any] = detail.get("ctx") or {}
        kind = detail["type"]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"]).lstrip(".")
        reference, message = _MESSAGES.get(kind, (kind if "message" in context else "wrong-type", _OTHER))
        message = context.get("message") or message.format_map({name: shown(one) for name, one in context.items()})
        near = nearest(path.rpartition(".")[2], names) if kind == "extra_forbidden" else None
        hint = f"did you mean {near}?" if near else context.get("hint") or None
        yield Finding(reference, path, f"{path.rpartition('.')[2]} {message}".lstrip(), hint)
