"""The lookup file: for every profile a table that says which columns an element becomes (document 3 §5).

A JSON list of tables ``{url, resourceType, elements}``; ``elements`` maps an element id to ``{viewDefinition,
children?, parent?}``. It is read at start, before a job exists, and everything that is wrong with it is reported at
once. Its models are in ``lookup_model.py``. An element belongs below the one whose ``children`` name it; where none
does, its own ``parent`` counts, so that a context is not lost.

Errors (``InputError``): ``lookup-unreadable``, ``lookup-not-json``, ``lookup-schema-violation``,
``lookup-duplicate-table``, ``lookup-multiple-parents``, ``lookup-child-cycle``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tasks.flattening.lookup_model import LookupTable
from tasks.shared.errors import InputError, SluiceError
from tasks.shared.files.named_file import JsonFile, strict_json

_FILE: Final = JsonFile(
    "lookup-unreadable", "lookup-not-json", "the lookup file", "services.flattening.lookup_path names the lookup table"
)

Lookup = Mapping[str, LookupTable]
"""The tables of a lookup file by canonical URL. ``children`` and ``parent`` of their elements agree with each other; no
element is below itself."""


def read_lookup(path: Path) -> tuple[Lookup | None, list[SluiceError], list[str]]:
    """Return the lookup file, or ``None`` if it has errors, with its errors and its warnings.

    Raises nothing for what may stand in the file, nor when it cannot be read: that is a finding as well.
    """
    try:
        document = _FILE.parse(_FILE.read(path), path, strict_json)
    except InputError as error:
        return None, [error], []
    if not isinstance(document, list):
        message = "a lookup file is a JSON list of tables"
        return None, [InputError("lookup-schema-violation", message, context=str(path))], []
    lookup: dict[str, LookupTable] = {}
    findings: list[SluiceError] = []
    warnings: list[str] = []
    for number, entry in enumerate(document):
        where = f"{path} [{number}]"
        try:
            table = LookupTable.model_validate(entry)
        except ValidationError as error:
            findings += _violations(error, entry, where)
            continue
        if table.url in lookup:
            message = f"table {table.url}: there is a table with this url already"
            findings.append(InputError("lookup-duplicate-table", message, context=where))
        settled, errors, odd = _settled(table, where)
        lookup[table.url] = settled
        findings += errors
        warnings += odd
    return (None if findings else lookup), findings, warnings


def load_lookup(path: Path) -> tuple[Lookup, list[str]]:
    """Return the lookup file and its warnings. Raises ``InputError`` with the first error."""
    lookup, findings, warnings = read_lookup(path)
    for finding in findings:
        raise finding
    assert lookup is not None  # noqa: S101 - for the type checker
    return lookup, warnings


def _violations(error: ValidationError, entry: Any, where: str) -> Iterator[InputError]:
    url = entry.get("url") if isinstance(entry, dict) else None
    table = f"table {url}: " if isinstance(url, str) else ""
    for detail in error.errors(include_url=False, include_input=False):
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in detail["loc"])
        yield InputError("lookup-schema-violation", f"{table}{detail['msg']}", context=where + place)


def _settled(table: LookupTable, where: str) -> tuple[LookupTable, list[SluiceError], list[str]]:
    """Return the table with each element at its place, the errors, and a warning for each child without an entry."""
    errors: list[SluiceError] = []
    warnings: list[str] = []
    children: dict[str, list[str]] = {name: [] for name in table.elements}
    listed: dict[str, list[str]] = {}
    for name, element in table.elements.items():
        for child in dict.fromkeys(element.children):
            if child in children:
                children[name].append(child)
                listed.setdefault(child, []).append(name)
            else:
                warnings.append(
                    f"lookup table {table.url}, element {name}: the child {child} has no entry in this table"
                )
    for name, element in table.elements.items():
        if len(parents := listed.get(name, [])) > 1:
            message = f"table {table.url}: element {name} is listed as a child by {', '.join(parents)}"
            hint = "an element belongs below one element: name it in one list of children"
            errors.append(InputError("lookup-multiple-parents", message, context=where, hint=hint))
        if not parents and element.parent in children:
            children[element.parent].append(name)
    try:
        TopologicalSorter(children).prepare()
    except CycleError as error:
        way = " → ".join(error.args[1][::-1])  # told from child to parent
        message = f"table {table.url}: an element is below itself: {way}"
        hint = "take one of these elements out of the children of the one before it"
        errors.append(InputError("lookup-child-cycle", message, context=where, hint=hint))
    parent_of = {child: name for name, below in children.items() for child in below}
    elements = {
        name: element.model_copy(update={"children": tuple(children[name]), "parent": parent_of.get(name)})
        for name, element in table.elements.items()
    }
    return table.model_copy(update={"elements": elements}), errors, warnings
