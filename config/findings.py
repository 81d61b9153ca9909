"""What can be wrong with a configuration: findings, collected and raised together.

A finding never quotes a value of the configuration, except durations, URLs that were checked to hold no credentials,
and the name of a file that was read: a value may be a secret that stands in the wrong place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


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
        """The form in which a person sees it (``4-product.md`` §2): message, context, hint."""
        lines = [f"{self.level}[{self.reference}]: {self.message}"]
        context = " ".join(part for part in (self.key, f"({self.where})" if self.where else "") if part)
        if context:
            lines.append(f"  {context}")
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


def about(key: str, predicate: str) -> str:
    """A message about a key: its last name (with an index, if any), then what is wrong with it."""
    return f"{key.rpartition('.')[2]} {predicate}"


class ConfigError(Exception):
    """The configuration is rejected (exit code 2); ``findings`` holds everything that was found, errors first."""

    exit_code = 2

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings: tuple[Finding, ...] = tuple(findings)
        super().__init__("\n\n".join(finding.render() for finding in self.findings))
