"""Rewrite a configuration file in the names of today, comments included (document 7, section 5).

Only the text of older names changes. Each change is one of four: another name, another value, lines that move into a
block, lines that become comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from config.deprecated import DEPRECATED, REMOVED_BLOCKS, RENAMED, RENAMED_STEPS, DeprecatedKey, current_path
from config.document import TextSpan, places
from config.duration import format_duration
from config.keys import root_urls

_FHIR = re.compile(r"/fhir/*(?=[\"']?\Z)", re.IGNORECASE)


@dataclass(frozen=True)
class _Edit:
    """Characters ``start`` to before ``end`` of the file become ``text``."""

    start: int
    end: int
    text: str


def migrate(text: str) -> str:
    """Return the text of a configuration file with the names of today.

    A value in minutes or seconds that a variable gives keeps its older key, which is still accepted. A URL that a
    variable gives must not end in ``/fhir`` in the new file. Raises ``DocumentError`` as ``places`` does.
    """
    found = places(text)
    older = any(place.path in RENAMED or _step(text, place) for place in found)
    while (changed := _moved(text, places(text))) is not None:  # each move shifts the places of the others
        text = changed
    for edit in sorted(_edits(text, places(text), older=older), key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _edits(text: str, found: list[TextSpan], *, older: bool) -> Iterator[_Edit]:
    """Yield the changes within lines; ``older``: the file has names of the peer tool, whose URLs may end in /fhir."""
    for place in found:
        path = current_path(place.path)
        new, old = RENAMED.get(_parent_today(place.path)), DEPRECATED.get(path)
        if new is not None:
            yield _renamed(text, place, new)
        elif old is not None and (duration := _duration(text, place, old)):
            yield _renamed(text, place, str(old.replacement))
            yield _Edit(*_range(place), duration)
        if (name := _step(text, place)) is not None:
            yield _Edit(*_range(place), _written(text, place).replace(name, RENAMED_STEPS[name]))
        if older and place.value is not None and path in root_urls():
            yield _Edit(*place.value, _FHIR.sub("", _written(text, place)))


def _renamed(text: str, place: TextSpan, new: str) -> _Edit:
    """Return the change of a key, whose quotes stay, to the last name of ``new``."""
    name = place.path.rpartition(".")[2]
    return _Edit(*place.key, text[slice(*place.key)].replace(name, new.rpartition(".")[2]))


def _moved(text: str, found: list[TextSpan]) -> str | None:
    """Return the text after the lines of one entry moved into another block, or became comments; ``None`` when there is
    nothing to move."""
    end = "\r\n" if "\r\n" in text else "\n"
    lines = [f"{line}{end}" for line in text.splitlines()]
    for place in found:
        path = current_path(place.path)
        old = DEPRECATED.get(path)
        removed = path in REMOVED_BLOCKS or (old is not None and old.replacement is None)
        target = old.replacement if old is not None and old.flat_auth else RENAMED.get(_parent_today(place.path))
        block = (target or "").rpartition(".")[0]
        if not place.own_lines or not (removed or (target and block != _block_today(place.path))):
            continue
        indent = _indent(lines[place.first])
        own = lines[place.first : place.last + 1]
        if any(line.strip() and _indent(line) < indent for line in own):
            continue  # a text over several lines
        if removed:
            own = [f"{' ' * indent}# {line[indent:]}" for line in own]
            return "".join(lines[: place.first] + own + lines[place.last + 1 :])
        first = place.first
        while first and lines[first - 1].startswith(f"{' ' * indent}#"):
            first -= 1  # comments right above it belong to it
        rest = lines[:first] + lines[place.last + 1 :]
        if (moved := _inserted(rest, lines[first : place.last + 1], block, first, end)) is not None:
            return "".join(moved)
    return None


def _inserted(lines: list[str], own: list[str], block: str, at: int, end: str) -> list[str] | None:
    """Return the lines with those of an entry at the end of a block; if there is none, a new one is begun at line
    ``at``. ``None`` for a block that is written in brackets or as a value."""
    found = places("".join(lines))
    there = next((place for place in found if current_path(place.path) == block), None)
    if there is not None and (there.flow or (there.value is not None and there.value[0] < there.value[1])):
        return None
    indent = _indent(own[0])
    unit = next((_indent(lines[place.first]) for place in found if place.path.startswith("services.")), 2)
    inside = next((_indent(lines[place.first]) for place in found if _block_today(place.path) == block), None)
    column = inside if inside is not None else unit + (_indent(lines[there.first]) if there is not None else indent)
    before = [] if there is not None else [f"{' ' * indent}{block.rpartition('.')[2]}:{end}"]
    where = there.last + 1 if there is not None else at
    moved = [f"{' ' * column}{line[indent:]}" if line.strip() else line for line in own]
    return lines[:where] + before + moved + lines[where:]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _parent_today(path: str) -> str:
    """Return the path with the names of today but for its last name."""
    block, dot, name = path.rpartition(".")
    return f"{current_path(block)}{dot}{name}" if block else path


def _block_today(path: str) -> str:
    return current_path(path.rpartition(".")[0]) if "." in path else ""


def _step(text: str, place: TextSpan) -> str | None:
    """Return the older name of a step that an entry of the list of steps has."""
    name = _written(text, place).strip("\"'") if place.path.startswith("pipeline.enabled_steps[") else ""
    return name if name in RENAMED_STEPS else None


def _duration(text: str, place: TextSpan, old: DeprecatedKey) -> str | None:
    """Return the duration that a whole number of minutes or seconds is."""
    number = _written(text, place).strip("\"'")
    return format_duration(int(number) * old.unit) if old.unit is not None and number.isdecimal() else None


def _written(text: str, place: TextSpan) -> str:
    return text[slice(*_range(place))] if place.value is not None else ""


def _range(place: TextSpan) -> tuple[int, int]:
    return place.value or place.key
