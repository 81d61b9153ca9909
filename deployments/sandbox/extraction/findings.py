"""Reading a query document so that everything wrong with it is found at once, each finding with its place."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any

ONE_LINE = 120
"""The longest piece of a query that a finding quotes."""


class QueryError(Exception):
    """A CRTDL or CCDL that the sandbox cannot honour; ``findings`` say where and what."""

    def __init__(self, findings: Iterable[str]) -> None:
        self.findings = tuple(findings)
        super().__init__(f"{len(self.findings)} findings")


class Findings:
    """Collects findings, and reads typed values out of parsed JSON. A value that is wrong reads as None."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, place: str, text: str) -> None:
        """Note a finding at a place such as ``cohortDefinition.inclusionCriteria[0]``."""
        self.found.append(f"{place}: {text}" if place else text)

    def check(self) -> None:
        """Raise ``QueryError`` when anything was found."""
        if self.found:
            raise QueryError(self.found)

    def mapping(self, value: object, place: str) -> dict[str, Any] | None:
        """A JSON object."""
        if isinstance(value, dict):
            return value
        self.add(place, "an object is expected")
        return None

    def items(self, node: dict[str, Any], key: str, place: str, *, least: int = 0) -> list[tuple[str, Any]]:
        """The items of a list with their places; a missing list is an empty one."""
        value = node.get(key)
        where = join(place, key)
        if value is None:
            value = []
        if not isinstance(value, list):
            self.add(where, "a list is expected")
            return []
        if len(value) < least:
            self.add(where, "at least one entry is expected")
        return [(f"{where}[{number}]", item) for number, item in enumerate(value)]

    def text(self, node: dict[str, Any], key: str, place: str, *, needed: bool = True) -> str | None:
        """A text that is not empty."""
        value = node.get(key)
        if value is None and not needed:
            return None
        if isinstance(value, str) and value.strip():
            return value
        self.add(join(place, key), "a text is expected")
        return None

    def flag(self, node: dict[str, Any], key: str, place: str, *, default: bool | None = None) -> bool:
        """A boolean; without a default it must be there."""
        value = node.get(key, default)
        if isinstance(value, bool):
            return value
        if value is None and default is not None:
            return default
        self.add(join(place, key), "true or false is expected")
        return False

    def day(self, node: dict[str, Any], key: str, place: str) -> date | None:
        """A date, ``YYYY-MM-DD``, or nothing."""
        value = node.get(key)
        if value is None:
            return None
        try:
            if isinstance(value, str) and len(value) == len("2026-01-31"):
                return date.fromisoformat(value)
        except ValueError:
            pass
        self.add(join(place, key), "a date as YYYY-MM-DD is expected")
        return None

    def known(self, node: dict[str, Any], keys: Iterable[str], place: str) -> None:
        """Refuse keys that could narrow the query in a way the sandbox would miss."""
        for key in sorted(set(node) - set(keys)):
            self.add(join(place, quoted(key)), "the sandbox does not know this key and cannot honour it")


def join(place: str, key: str) -> str:
    """The place of a member."""
    return f"{place}.{key}" if place else key


def quoted(text: object) -> str:
    """A piece of the query, on one line and short."""
    line = " ".join(str(text).split())
    return line if len(line) <= ONE_LINE else line[: ONE_LINE - 1] + "…"
