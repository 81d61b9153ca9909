from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from config.values import expand

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


def test_only_the_braced_form_is_replaced() -> None:
    assert expand("pa$abc-${X}$", {"X": "1", "abc": "2"}).text == "pa$abc-1$"


def test_two_dollars_and_a_brace_write_a_literal_one() -> None:
    expanded = expand("$${X}", {"X": "1"})
    assert expanded.text == "${X}"
    assert expanded.variables == ()


def test_what_a_variable_holds_is_not_expanded_again() -> None:
    assert expand("${A}", {"A": "${B}", "B": "2"}).text == "${B}"


def test_an_unset_variable_is_named_once() -> None:
    assert expand("${A}${B}${A}", {"B": ""}).unset == ("A",)


def test_an_empty_variable_is_set() -> None:
    assert expand("x${A}", {"A": ""}) == expand("x", {}).__class__("x", ("A",))


def test_an_opened_brace_without_a_name_is_malformed() -> None:
    assert expand("a${", {}).malformed
    assert expand("${A-B}", {}).malformed
    assert expand("${A", {"A": "1"}).malformed


@given(st.text().filter(lambda text: "${" not in text))
def test_text_without_a_reference_stays(text: str) -> None:
    assert expand(text, {}).text == text


@given(st.text())
def test_escaping_is_the_inverse_of_expansion(text: str) -> None:
    # A "$" right before "${" cannot be written, since "$${" is the escape.
    plain = re.sub(r"\$+\{", "${", text)
    assert expand(plain.replace("${", "$${"), {}).text == plain


@given(st.lists(st.tuples(st.text(alphabet="abc ${}-", max_size=5).filter(lambda t: "$" not in t), names), max_size=5))
def test_each_reference_is_replaced_by_its_value(parts: list[tuple[str, str]]) -> None:
    environ = {name: f"<{name}>" for _, name in parts}
    written = "".join(f"{text}${{{name}}}" for text, name in parts)
    assert expand(written, environ).text == "".join(f"{text}<{name}>" for text, name in parts)
