"""YAML with line numbers: text → a small tree of located values, and every duplicate key of it.

PyYAML is known here and nowhere else. Its messages may quote the document, so they are replaced by a line and a
column. Scalars keep the text they were written with: ``0123`` or ``2024-01-01`` stays what it says where a key
wants text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import yaml

# The C parser where the installation has it: ten times as fast, same documents.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_DEEPEST = 40
_MOST_NODES = 100_000
_PLAIN_TAGS = {"null", "bool", "int", "float", "str", "timestamp", "merge", "value"}
_PREFIX = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Scalar:
    """One value: ``text`` as written, ``value`` as YAML reads it (text where YAML sees none of null, bool, number)."""

    line: int
    text: str = field(repr=False)
    value: bool | int | float | str | None = field(repr=False)


@dataclass(frozen=True)
class Sequence:
    """A list."""

    line: int
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Mapping:
    """A mapping; keys as written, the last one of a repeated key."""

    line: int
    entries: dict[str, Node]


Node: TypeAlias = Scalar | Sequence | Mapping


@dataclass(frozen=True)
class Duplicate:
    """A key that a mapping holds twice: its path, and the lines of both."""

    path: str
    first_line: int
    line: int


class DocumentError(ValueError):
    """The text is not usable YAML; the message quotes nothing of it. Lines and columns count from 1."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


def parse_document(text: str) -> tuple[Node | None, tuple[Duplicate, ...]]:
    """Return the one document in ``text`` (``None`` if there is none) and its duplicate keys.

    Raises ``DocumentError`` for everything else, hostile nesting and alias bombs included.
    """
    try:
        _check_depth(text)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark is None:
            raise DocumentError("is not valid YAML") from None
        raise DocumentError("is not valid YAML", mark.line + 1, mark.column + 1) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position] if isinstance(error.position, int) else ""
        raise DocumentError("holds a character that YAML does not allow", before.count("\n") + 1) from None
    except yaml.YAMLError:
        raise DocumentError("is not valid YAML") from None
    if root is None:
        return None, ()
    builder = _NodeBuilder()
    return builder.build(root, ""), tuple(builder.duplicates)


def plain(node: Node) -> Any:
    """Return the tree as plain Python values."""
    if isinstance(node, Mapping):
        return {key: plain(value) for key, value in node.entries.items()}
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    return node.value


@dataclass(frozen=True)
class TextSpan:
    """Position of a mapping or list entry in the text: its dotted path, and half-open ranges of characters.

    ``key`` is the range of the key, empty for an entry of a list; ``value`` that of a scalar, ``None`` for others. The
    entry takes up the lines ``first`` to ``last``, counted from 0; ``own_lines``: nothing else is on them. The value of
    one with ``flow`` is written in brackets.
    """

    path: str
    key: tuple[int, int]
    value: tuple[int, int] | None
    first: int
    last: int
    own_lines: bool
    flow: bool


def places(text: str) -> list[TextSpan]:
    """Return where each entry of a valid document stands, in the order of the text.

    Raises ``DocumentError`` for what ``parse_document`` refuses, and for a document with aliases or merge keys, whose
    entries stand in several places.
    """
    parse_document(text)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):  # the C parser counts bytes in places
            if isinstance(event, yaml.AliasEvent) or getattr(event, "value", None) == "<<":
                raise DocumentError("uses an alias or a merge key", _line(event))
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:  # it refuses some tabs that the C parser accepts
        raise DocumentError("uses tabs", error.problem_mark.line + 1 if error.problem_mark else None) from None
    return list(_places(root, "", text.splitlines()))


def _places(node: yaml.Node | None, path: str, lines: list[str]) -> Iterator[TextSpan]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = _place(f"{path}.{key.value}".lstrip("."), key, value, lines)
            yield replace(place, own_lines=place.own_lines and not node.flow_style)
            yield from _places(value, f"{path}.{key.value}".lstrip("."), lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield _place(f"{path}[{index}]", value, value, lines)
            yield from _places(value, f"{path}[{index}]", lines)


def _place(path: str, key: yaml.Node, value: yaml.Node, lines: list[str]) -> TextSpan:
    start, scalar = key.start_mark, isinstance(value, yaml.ScalarNode)
    end = _end(value)
    rest = lines[end.line][end.column :] if end.line < len(lines) else ""
    return TextSpan(
        path,
        (start.index, key.end_mark.index) if key is not value else (start.index, start.index),
        (value.start_mark.index, value.end_mark.index) if scalar else None,
        start.line,
        end.line,
        not lines[start.line][: start.column].strip() and not rest.partition("#")[0].strip(),
        isinstance(value, yaml.CollectionNode) and bool(value.flow_style),
    )


def _end(node: yaml.Node) -> Any:
    """Return the mark behind the last character of a value. Block collections end at the next token, not there."""
    inside = (
        [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        if isinstance(node, yaml.CollectionNode) and not node.flow_style
        else []
    )
    return _end(inside[-1]) if inside else node.end_mark


def _check_depth(text: str) -> None:
    # The composer recurses, in C without a net; the parser does not.
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                raise DocumentError("is nested too deeply", _line(event))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _line(part: Any) -> int:
    return int(part.start_mark.line) + 1


class _NodeBuilder:
    """Builder of our nodes from PyYAML's."""

    def __init__(self) -> None:
        self.duplicates: list[Duplicate] = []
        self._open: set[int] = set()
        self._count = 0
        self._constructor = yaml.constructor.SafeConstructor()

    def build(self, node: yaml.Node, path: str) -> Node:
        line = _line(node)
        self._count += 1
        if self._count > _MOST_NODES or id(node) in self._open:
            raise DocumentError("uses aliases that never end", line)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return Mapping(line, dict(self._entries(node, path)))
            if isinstance(node, yaml.SequenceNode):
                return Sequence(line, tuple(self.build(n, f"{path}[{i}]") for i, n in enumerate(node.value)))
            return self._scalar(node, line)
        finally:
            self._open.discard(id(node))

    def _scalar(self, node: yaml.Node, line: int) -> Scalar:
        tag = node.tag.removeprefix(_PREFIX)
        if tag not in _PLAIN_TAGS:
            raise DocumentError("uses a YAML tag that means nothing here", line)
        value = node.value
        if tag in {"null", "bool", "int", "float"}:
            try:
                value = self._constructor.construct_object(node)
            except (ValueError, KeyError, OverflowError, yaml.YAMLError):
                raise DocumentError("holds a value that cannot be read", line) from None
        return Scalar(line, node.value, value)

    def _entries(self, node: yaml.MappingNode, path: str) -> Iterator[tuple[str, Node]]:
        own: list[tuple[str, yaml.Node]] = []
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = _line(key)
            if not isinstance(key, yaml.ScalarNode):
                raise DocumentError("holds a key that is not text", line)
            if key.tag == _PREFIX + "merge":
                yield from self._merged(value, path, line)
                continue
            name = key.value
            if name in lines:
                self.duplicates.append(Duplicate(f"{path}.{name}".lstrip("."), lines[name], line))
            lines.setdefault(name, line)
            own.append((name, value))
        # After the merged ones, whatever the order in the file: a mapping's own keys win.
        for name, value in own:
            yield name, self.build(value, f"{path}.{name}".lstrip("."))

    def _merged(self, value: yaml.Node, path: str, line: int) -> Iterator[tuple[str, Node]]:
        sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for source in reversed(sources):  # the first one wins
            built = self.build(source, path)
            if not isinstance(built, Mapping):
                raise DocumentError("merges something that is not a mapping", line)
            yield from built.entries.items()
