"""Text of the Prefect UI: what stands there as it is (tests/browser looks at it in a browser)."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.reports.markdown import code, literal, table


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("plain words, 1.5 s, 2026-11-21, a-b, a_b_c", "plain words, 1.5 s, 2026-11-21, a-b, a_b_c"),
        ("# step", r"\# step"),
        ("1. one", r"1\. one"),
        ("- a", r"\- a"),
        ("<Type>", r"\<Type\>"),
        ("![x](http://outside.example/a.png)", r"\!\[x\](http\://outside.example/a.png)"),
        ("__init__", r"\_\_init\_\_"),
        ("a|b", r"a\|b"),
        ("a&lt;b & c", r"a\&lt;b & c"),
    ],
)
def test_a_text_is_escaped_where_markdown_would_read_it_and_nowhere_else(text: str, markdown: str) -> None:
    assert literal(text) == markdown


@settings(deadline=None)
@given(st.text())
def test_nothing_of_a_text_is_lost(text: str) -> None:
    assert re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", literal(text)) == text


@settings(deadline=None)
@given(st.text(alphabet="<>![]()`*_#|&;:/aw. \n-"))
def test_no_image_no_link_and_no_html_survives(text: str) -> None:
    # Something stays where an escaped sign was: else what stands before and behind it would be a link.
    bare = re.sub(r"\\[!-/:-@\[-`{-~]", "§", literal(text))
    assert not set(bare) & set("<>![]`*|")
    assert "://" not in bare or not re.search(r"\w://", bare)


@pytest.mark.parametrize(("text", "markdown"), [("/a/b_c*", "`/a/b_c*`"), ("a`b", "`` a`b ``")])
def test_code_shows_a_path_as_it_is(text: str, markdown: str) -> None:
    assert code(text) == markdown


def test_a_table_leaves_columns_without_any_value_out_except_the_first_two() -> None:
    text = table(("a", "b", "c", "d"), [["", "", "", "x|y"], ["", "1", "", "two\nlines"]])
    assert text.splitlines() == ["| a | b | d |", "|---|---|---|", r"|  |  | x\|y |", "|  | 1 | two lines |"]
