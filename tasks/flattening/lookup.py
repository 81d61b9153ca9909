"""Read the lookup file: a table for each profile, with the columns of each element (docs/steps.md).

A JSON list of tables ``{url, resourceType, elements}``; ``elements`` maps an element id to ``{viewDefinition,
children?, parent?}``. An unknown key is an error; null counts as absent, as in a CRTDL. All errors are reported
at once, before a job exists, as ``InputError``: ``lookup-unreadable``, ``lookup-not-json``,
``lookup-schema-violation``, ``lookup-duplicate-table``, ``lookup-multiple-parents``, ``lookup-child-cycle``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, Field, StrictBool, StrictStr, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from tasks.shared.errors import InputError, SluiceError
from tasks.shared.files.named_file import JsonFile, strict_json

_FILE: Final = JsonFile("lookup", "the lookup file (services.flattening.lookup_path)")


class _LookupPart(BaseModel, extra="forbid", alias_generator=to_camel, defer_build=True):
    """Base of the models. They are built when a lookup file is read, because most starts read none."""


_Text = Annotated[StrictStr, Field(pattern=r"\S")]
_NULL_IS_EMPTY = BeforeValidator(lambda value: () if value is None else value)
_NULL_IS_THIS = BeforeValidator(lambda value: "$this" if value is None else value)


class ColumnDefinition(_LookupPart):
    """One column. Without a ``path`` it holds the item that the clause iterates over (``$this`` in FHIRPath)."""

    name: _Text
    path: Annotated[_Text, _NULL_IS_THIS] = "$this"
    type: _Text | None = None
    collection: StrictBool | None = None
    description: StrictStr | None = None


class SelectClause(_LookupPart):
    """Columns and inner clauses, applied once per resource, or per item of ``for_each`` or ``for_each_or_null``."""

    for_each: _Text | None = None
    for_each_or_null: _Text | None = None
    columns: Annotated[list[ColumnDefinition], Field(alias="column"), _NULL_IS_EMPTY] = []
    select: Annotated[list[SelectClause], _NULL_IS_EMPTY] = []

    @model_validator(mode="after")
    def _check_one_of_both(self) -> Self:
        if self.for_each is not None and self.for_each_or_null is not None:
            raise ValueError("has both forEach and forEachOrNull: keep one of them")
        return self

    @property
    def iterated(self) -> str | None:
        """Return the path of ``forEach`` or ``forEachOrNull``; ``None`` without both."""
        return self.for_each if self.for_each is not None else self.for_each_or_null

    def attach(self, child: SelectClause) -> None:
        """Put a clause below this one: with a ``forEach`` of its own it stays a clause, else it becomes part of it."""
        if child.iterated is not None:
            self.select.append(child)
        else:
            self.columns += child.columns
            self.select += child.select

    def prune(self) -> bool:
        """Drop inner clauses without columns; return whether this clause has any column."""
        self.select = [part for part in self.select if part.prune()]
        return bool(self.columns or self.select)

    def walk(self) -> Iterator[ColumnDefinition]:
        """Yield the columns in the order of the output."""
        yield from self.columns
        for part in self.select:
            yield from part.walk()

    def make_names_unique(self) -> list[tuple[str, str]]:
        """Add a numbered suffix to repeated column names; return the old and the new name of each."""
        written = {column.name for column in self.walk()}  # a new name must not be one of these
        taken: set[str] = set()
        renamed: list[tuple[str, str]] = []
        for column in self.walk():
            if (old := column.name) in taken:
                suffixed = (f"{old}_{number}" for number in count(2))
                column.name = next(name for name in suffixed if name not in written | taken)
                renamed.append((old, column.name))
            taken.add(column.name)
        return renamed

    def document(self) -> dict[str, Any]:
        """Return the clause as JSON, with the keys of a ViewDefinition and no empty one."""
        written = self.model_dump(by_alias=True, exclude_none=True, exclude={"columns", "select"})
        columns = [column.model_dump(exclude_none=True) for column in self.columns]
        below = {"column": columns, "select": [part.document() for part in self.select]}
        return written | {key: value for key, value in below.items() if value}


class LookupElement(_LookupPart):
    """One element: its clause, and its children and parent in the same table."""

    definition: Annotated[SelectClause, Field(alias="viewDefinition")]
    children: Annotated[tuple[_Text, ...], _NULL_IS_EMPTY] = ()
    parent: _Text | None = None


class LookupTable(_LookupPart):
    """The columns for the elements of a profile, by element id; ``url`` is the canonical URL of the profile."""

    url: _Text
    resource_type: Annotated[StrictStr, Field(pattern=r"^[A-Z][A-Za-z]*$")]
    elements: dict[_Text, LookupElement]


@dataclass
class LookupFile:
    """A lookup file: its tables by URL, its errors (with any, it cannot be used), and its warnings.

    The parent of an element is the one whose ``children`` name it, else its own ``parent``. Here both agree.
    """

    tables: dict[str, LookupTable] = field(default_factory=dict)
    findings: list[SluiceError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_lookup(path: Path) -> LookupFile:
    """Return a lookup file with all its findings. Raises nothing: a file that cannot be read is a finding as well."""
    read = LookupFile()
    try:
        document = _FILE.parse(_FILE.read(path), path, strict_json)
    except InputError as error:
        read.findings.append(error)
        return read
    if not isinstance(document, list):
        message = "a lookup file is a JSON list of tables"
        read.findings.append(InputError("lookup-schema-violation", message, context=str(path)))
        return read
    for number, entry in enumerate(document):
        try:
            _add(read, LookupTable.model_validate(entry), f"{path} [{number}]")
        except ValidationError as error:
            read.findings += _violations(error, entry, f"{path} [{number}]")
    return read


def _violations(error: ValidationError, entry: Any, where: str) -> Iterator[InputError]:
    url = entry.get("url") if isinstance(entry, dict) else None
    table = f"table {url}: " if isinstance(url, str) else ""
    for detail in error.errors(include_url=False, include_input=False):
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in detail["loc"])
        yield InputError("lookup-schema-violation", f"{table}{detail['msg']}", context=where + place)


def _add(read: LookupFile, table: LookupTable, where: str) -> None:
    """Add a table, with children and parents of its elements that agree with each other."""

    def wrong(reference: str, message: str, hint: str | None = None) -> None:
        read.findings.append(InputError(reference, f"table {table.url}: {message}", context=where, hint=hint))

    if table.url in read.tables:
        wrong("lookup-duplicate-table", "there is a table with this url already")
    children: dict[str, list[str]] = {name: [] for name in table.elements}
    parents: dict[str, list[str]] = {name: [] for name in table.elements}
    for name, child in ((name, child) for name, one in table.elements.items() for child in dict.fromkeys(one.children)):
        if child in parents:
            children[name].append(child)
            parents[child].append(name)
        else:
            read.warnings.append(
                f"lookup table {table.url}, element {name}: the child {child} has no entry in this table"
            )
    for name, element in table.elements.items():
        if not parents[name] and element.parent in children:
            children[element.parent].append(name)
            parents[name].append(element.parent)
        if len(parents[name]) > 1:
            what = f"element {name} is listed as a child by {', '.join(parents[name])}"
            wrong("lookup-multiple-parents", what, "an element belongs below one element: name it in one of them")
    try:
        TopologicalSorter(children).prepare()
    except CycleError as error:
        what = f"an element is below itself: {' → '.join(error.args[1][::-1])}"  # listed from child to parent
        wrong("lookup-child-cycle", what, "take one of these elements out of the children of the one before it")
    elements = {
        name: one.model_copy(update={"children": tuple(children[name]), "parent": next(iter(parents[name]), None)})
        for name, one in table.elements.items()
    }
    read.tables[table.url] = table.model_copy(update={"elements": elements})
