"""Checking the structure of a JSON document: every finding with its key path, none of them the last one.

Each method looks at one key, notes what is wrong and returns the value when it can be used. Values are not quoted.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Collection
from datetime import date
from pathlib import Path
from typing import Any, TypeGuard

from tasks.shared.errors import InputError

_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2})(?:T.*)?)?)?\Z", re.ASCII)


class Structure:
    """What is found in one CRTDL. ``findings`` have the reference ``crtdl-schema`` unless one is named."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.findings: list[InputError] = []

    def add(self, reference: str, message: str, where: str, hint: str | None = None) -> None:
        """Note a finding at a key path."""
        context = f"{self._path} {where}" if where else str(self._path)
        self.findings.append(InputError(reference, message, context=context, hint=hint))

    def wrong(self, where: str, message: str) -> None:
        """Note that the structure is not right."""
        self.add("crtdl-schema", message, where)

    def is_object(self, value: Any, where: str) -> TypeGuard[dict[str, Any]]:
        """Whether ``value`` is an object."""
        if isinstance(value, dict):
            return True
        self.wrong(where, "must be an object")
        return False

    def is_text(self, value: Any, where: str) -> TypeGuard[str]:
        """Whether ``value`` is text that says something."""
        if isinstance(value, str) and value.strip():
            return True
        self.wrong(where, "must be text that is not empty")
        return False

    def object(self, parent: dict[str, Any], key: str, where: str, *, required: bool = True) -> dict[str, Any] | None:
        """The object under ``key``."""
        value = self._value(parent, key, where, required)
        return value if value is not None and self.is_object(value, _join(where, key)) else None

    def text(self, parent: dict[str, Any], key: str, where: str, *, required: bool = True) -> str | None:
        """The text under ``key``; an optional one may be empty."""
        value = self._value(parent, key, where, required)
        if not required and isinstance(value, str):
            return value
        return value if value is not None and self.is_text(value, _join(where, key)) else None

    def boolean(self, parent: dict[str, Any], key: str, where: str, *, required: bool = True) -> None:
        """Check the boolean under ``key``."""
        value = self._value(parent, key, where, required)
        if value is not None and not isinstance(value, bool):
            self.wrong(_join(where, key), "must be true or false")

    def number(self, parent: dict[str, Any], key: str, where: str) -> float | None:
        """The number under ``key``."""
        value = self._value(parent, key, where, required=True)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        if value is not None:
            self.wrong(_join(where, key), "must be a number")
        return None

    def list(
        self, parent: dict[str, Any], key: str, where: str, *, at_least: int = 0, required: bool = True
    ) -> builtins.list[Any]:
        """The list under ``key``; empty when it cannot be used."""
        value = self._value(parent, key, where, required)
        if value is None:
            return []
        if not isinstance(value, list):
            self.wrong(_join(where, key), "must be a list")
            return []
        if len(value) < at_least:
            self.wrong(_join(where, key), f"must have at least {at_least} {'entry' if at_least == 1 else 'entries'}")
        return value

    def choice(self, parent: dict[str, Any], key: str, where: str, known: Collection[str]) -> str | None:
        """The text under ``key``, one of ``known``."""
        value = self._value(parent, key, where, required=True)
        if isinstance(value, str) and value in known:
            return value
        if value is not None:
            self.wrong(_join(where, key), f"must be one of {', '.join(known)}")
        return None

    def version(self, parent: dict[str, Any], where: str, numbers: Collection[str], *, reference: str) -> None:
        """Check ``version``: one of ``numbers``, or the URL of a schema."""
        value = self._value(parent, "version", where, required=True)
        known = isinstance(value, str) and (value in numbers or re.match(r"https?://\S+\Z", value) is not None)
        if value is not None and not known:
            shown = " or ".join(f'"{number}"' for number in numbers)
            self.add(reference, f"must be {shown}, or the URL of a schema", _join(where, "version"))

    def codings(self, parent: dict[str, Any], key: str, where: str) -> None:
        """Check a list of at least one code: system and code, a display if there is one."""
        for number, coding in enumerate(self.list(parent, key, where, at_least=1)):
            self.coding(coding, f"{_join(where, key)}[{number}]")

    def coding(self, coding: Any, where: str) -> None:
        """Check one code."""
        if self.is_object(coding, where):
            self.text(coding, "system", where)
            self.text(coding, "code", where)
            self.text(coding, "display", where, required=False)

    def period(self, parent: dict[str, Any], first: str, last: str, where: str) -> None:
        """Check two dates: at least one is there, and the last is not before the first."""
        found = {key: self._date(parent, key, where) for key in (first, last)}
        begin, end = found[first], found[last]
        if parent.get(first) is None and parent.get(last) is None:
            self.wrong(where, f"needs {first}, {last} or both")
        elif begin is not None and end is not None and end[: len(begin)] < begin[: len(end)]:
            self.add("crtdl-date-order", f"{last} is before {first}", where)

    def _date(self, parent: dict[str, Any], key: str, where: str) -> tuple[int, ...] | None:
        value = parent.get(key)
        if value is None:
            return None
        match = _DATE.match(value) if isinstance(value, str) else None
        if match is not None:
            parts = tuple(int(part) for part in match.groups() if part is not None)
            try:
                date(*(*parts, 1, 1)[:3])
            except ValueError:
                pass
            else:
                return parts
        self.wrong(_join(where, key), "must be a date like 2021-06-30")
        return None

    def _value(self, parent: dict[str, Any], key: str, where: str, required: bool) -> Any:
        """The value under ``key``; null counts as absent."""
        value = parent.get(key)
        if value is None and required:
            self.wrong(_join(where, key), "is missing")
        return value


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
