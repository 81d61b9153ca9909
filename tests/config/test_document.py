from __future__ import annotations

import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from config.document import DocumentError, Mapping, Scalar, parse_document, plain

scalars = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.slow
@given(trees)
def test_a_document_reads_like_yaml_reads_it(tree: Any) -> None:
    root, duplicates = parse_document(yaml.safe_dump(tree))
    assert duplicates == ()
    assert root is not None
    assert plain(root) == tree


def test_lines_count_from_one() -> None:
    root, _ = parse_document("a: 1\nb:\n  c: x\n")
    assert isinstance(root, Mapping)
    block = root.entries["b"]
    assert isinstance(block, Mapping)
    assert block.entries["c"].line == 3


def test_a_scalar_keeps_the_text_it_was_written_with() -> None:
    root, _ = parse_document("0815")
    assert isinstance(root, Scalar)
    assert root.text == "0815"


def test_duplicate_keys_are_found_at_every_depth() -> None:
    _, duplicates = parse_document("a: 1\nb:\n  c: 1\n  c: 2\na: 2\n")
    assert {(d.path, d.first_line, d.line) for d in duplicates} == {("a", 1, 5), ("b.c", 3, 4)}


def test_a_merged_mapping_yields_to_the_own_keys() -> None:
    root, duplicates = parse_document("a: &x {p: 1, q: 1}\nb: {q: 2, <<: *x}\n")
    assert root is not None
    assert plain(root)["b"] == {"p": 1, "q": 2}
    assert duplicates == ()


@pytest.mark.parametrize(
    "text",
    [
        "a: hunter2: b",
        "a: 'hunter2",
        "a: *hunter2",
        "a:\n\t- hunter2",
        "a: !hunter2 b",
        "? [hunter2]\n: 1",
        "hunter2\x01",
        "--- hunter2\n--- b",
        "a: &hunter2 [*hunter2]",
        "a: {<<: hunter2}",
        "a: !!int hunter2",
    ],
)
def test_errors_quote_nothing(text: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_document(text)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_error_has_line_and_column() -> None:
    with pytest.raises(DocumentError) as caught:
        parse_document("a: 1\nb: c: d\n")
    assert (caught.value.line, caught.value.column) == (2, 5)


@pytest.mark.slow
def test_hostile_nesting_and_alias_bombs_end_soon() -> None:
    started = time.process_time()
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    for text in ("[" * 200_000, "{a: " * 200_000, bomb):
        with pytest.raises(DocumentError):
            parse_document(text)
    assert time.process_time() - started < 20
