"""Properties of the views of any lookup file and any CRTDL (docs/steps.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.flattening.lookup import read_lookup
from tasks.flattening.views import GroupView, views
from tasks.shared.fhir.crtdl import AttributeGroup, Crtdl
from tests.tasks.flattening.lookups import URL, Json, crtdl, group, table, write

MARK = "column of "
"""Begins the description of every column; the id of its element follows."""

IDS = [f"e{number}" for number in range(12)]


@st.composite
def tables(draw: st.DrawFn) -> Json:
    """Draw a table whose elements form a forest; each has at least one column that says whose it is."""
    count = draw(st.integers(1, len(IDS)))
    elements: Json = {}
    for number, name in enumerate(IDS[:count]):
        elements[name] = {"viewDefinition": draw(clauses(name))}
        above = draw(st.none() | st.integers(0, number - 1)) if number else None
        if above is not None:
            elements[IDS[above]].setdefault("children", []).append(name)
            if draw(st.booleans()):
                elements[name]["parent"] = IDS[above]
    return table(elements, kind=draw(st.sampled_from(["Condition", "Patient", "Consent", "Medication"])))


@st.composite
def clauses(draw: st.DrawFn, name: str) -> Json:
    """Draw a select clause of an element."""
    clause: Json = {}
    context = draw(st.sampled_from([None, "forEach", "forEachOrNull"]))
    if context is not None:
        clause[context] = f"path.of({name})"
    named = st.sampled_from(["id", "patient", "code", "code_2", "code_3", "text"])
    below = [{"name": each, "path": "x", "description": MARK + name} for each in draw(st.lists(named, max_size=2))]
    own = [{"name": draw(named), "path": "x", "description": MARK + name}]
    if below:
        clause["select"] = [{"column": below}]
    return clause | {"column": own}


@st.composite
def queries(draw: st.DrawFn) -> Crtdl:
    """Draw a CRTDL with groups of the table's profile and of another one; some attributes have no entry."""
    refs = st.lists(st.sampled_from([*IDS, "unknown"]), min_size=1, max_size=8)
    urls = st.sampled_from([URL, "https://example.org/other"])
    groups = [
        group(*draw(refs), reference=draw(urls), name=draw(st.none() | st.text(max_size=12)), key=f"g-{number}")
        for number in range(draw(st.integers(1, 3)))
    ]
    return crtdl(*groups)


def built(directory: Path, entry: Json, query: Crtdl) -> list[tuple[AttributeGroup, GroupView]]:
    read = read_lookup(write(directory, [entry]))
    assert read.findings == []
    made, _ = views(query, read.tables)
    return list(zip([each for each in query if each.reference == URL], made, strict=True))


def walk(clauses: list[Json], contexts: tuple[str, ...] = ()) -> Iterator[tuple[Json, tuple[str, ...]]]:
    """Yield every column of the definition with the contexts it stands in, as a flattening service walks it."""
    for clause in clauses:
        own = clause.get("forEach") or clause.get("forEachOrNull")
        inner = (*contexts, own) if own else contexts
        yield from ((each, inner) for each in clause.get("column", ()))
        yield from walk(clause.get("select", []), inner)


def above(entry: Json, name: str) -> Iterator[str]:
    """Yield the elements above one, the nearest first."""
    for parent, element in entry["elements"].items():
        if name in element.get("children", ()):
            yield parent
            yield from above(entry, parent)


def iterates(entry: Json, name: str) -> bool:
    return bool(entry["elements"][name]["viewDefinition"].keys() & {"forEach", "forEachOrNull"})


def size(entry: Json, name: str) -> int:
    """Count the columns of an element itself."""
    definition = entry["elements"][name]["viewDefinition"]
    return len(definition["column"]) + sum(len(part["column"]) for part in definition.get("select", ()))


SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@SETTINGS
@given(tables(), queries())
def test_column_names_are_unique_and_in_the_order_of_the_definition(tmp_path: Path, entry: Json, query: Crtdl) -> None:
    for _, view in built(tmp_path, entry, query):
        names = [each["name"] for each, _ in walk(view.definition["select"])]
        assert names == list(view.columns)
        assert len(set(names)) == len(names)
        assert names[0] == "id"


@pytest.mark.slow
@SETTINGS
@given(tables(), queries())
def test_every_requested_attribute_with_an_entry_is_covered_exactly_once(
    tmp_path: Path, entry: Json, query: Crtdl
) -> None:
    for asked, view in built(tmp_path, entry, query):
        requested = {each.ref for each in asked.attributes} & entry["elements"].keys()
        wanted = {name for name in entry["elements"] if requested & {name, *above(entry, name)}}
        found = Counter(
            each["description"].removeprefix(MARK)
            for each, _ in walk(view.definition["select"])
            if "description" in each
        )
        assert found == Counter({name: size(entry, name) for name in wanted})


@pytest.mark.slow
@SETTINGS
@given(tables(), queries())
def test_every_column_stands_in_the_contexts_of_its_element_and_in_no_other(
    tmp_path: Path, entry: Json, query: Crtdl
) -> None:
    for _, view in built(tmp_path, entry, query):
        for each, contexts in walk(view.definition["select"]):
            if "description" in each:
                name = each["description"].removeprefix(MARK)
                chain = [name, *above(entry, name)]
                assert list(contexts) == [f"path.of({one})" for one in reversed(chain) if iterates(entry, one)]


@pytest.mark.slow
@SETTINGS
@given(tables(), queries())
def test_a_context_is_iterated_over_once_in_a_view(tmp_path: Path, entry: Json, query: Crtdl) -> None:
    def contexts(clauses: list[Json]) -> Iterator[Any]:
        for clause in clauses:
            yield clause.get("forEach") or clause.get("forEachOrNull")
            yield from contexts(clause.get("select", []))

    for _, view in built(tmp_path, entry, query):
        found = [each for each in contexts(view.definition["select"]) if each]
        assert len(set(found)) == len(found)
