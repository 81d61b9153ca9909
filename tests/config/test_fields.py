"""Detection of secret parameters in a URL, for any text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from config.fields import SECRET_PARAMETERS, secret_parameters


@given(st.sampled_from(sorted(SECRET_PARAMETERS)), st.booleans(), st.sampled_from("?&;#"))
def test_every_secret_parameter_is_found_in_any_case_and_place(name: str, upper: bool, before: str) -> None:
    written = name.upper() if upper else name
    assert list(secret_parameters(f"https://h/x?a=1{before}{written}=s")) == [(written, "s")]


def test_underscores_and_percent_signs_hide_no_name() -> None:
    assert list(secret_parameters("https://h/x?access_token=1&%73ig=2")) == [("access_token", "1"), ("%73ig", "2")]


def test_ordinary_parameters_and_empty_ones_are_none() -> None:
    assert list(secret_parameters("https://h/sig=1/x?_type=Patient&signal=1&sig=&token")) == []


@given(st.text())
def test_any_text_may_be_asked_about(text: str) -> None:
    assert all(value for _, value in secret_parameters(text))
