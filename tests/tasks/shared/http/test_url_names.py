"""Names of files from URLs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.http.url_names import file_name, named_urls


def bases(*urls: str) -> list[str]:
    return list(named_urls(urls))


@pytest.mark.parametrize(
    ("path", "base"),
    [
        ("/Patient.ndjson", "Patient"),
        ("/Patient.ndjson.zst", "Patient"),
        ("/Patient.NDJSON", "Patient"),
        ("/a/b/Patient", "Patient"),
        ("/Patient.json", "Patient.json"),
        ("/Patient.zst", "Patient"),
        ("/Patient.ndjson?name=other.ndjson#part", "Patient"),
        ("", "download"),
        ("/", "download"),
        ("/a/", "download"),
        ("/.ndjson", "download"),
        ("/?x=/y", "download"),
        ("/J%C3%BCrgen%20K.ndjson", "Jürgen K"),
        ("/..%2F..%2Fetc%2Fpasswd", "_.._etc_passwd"),
        ("/%2e%2e", "download"),
        ("/.hidden.ndjson", "hidden"),
        ("/a%00b%0Ac.ndjson", "a_b_c"),
        ("/core.ndjson", "core"),
        ("/a/b7.ndjson.zst", "b7"),
        ("/a/b7.json?sig=CANARY", "b7.json"),
    ],
)
def test_the_name_comes_from_the_last_segment(path: str, base: str) -> None:
    assert bases(f"https://h{path}") == [base]


def test_two_urls_with_one_last_segment_never_overwrite_each_other() -> None:
    assert bases("https://h/1/x.ndjson", "https://h/2/X.ndjson", "https://h/x-2.ndjson") == ["x", "X-3", "x-2"]


def test_ten_thousand_files_of_one_name_are_numbered_at_once() -> None:
    assert bases(*(f"https://h/{n}/x.ndjson" for n in range(10_000)))[-1] == "x-10000"


@given(st.lists(st.text(max_size=30), max_size=8))
def test_names_are_different_in_any_case_and_the_same_every_time(segments: list[str]) -> None:
    urls = [f"https://h/{segment}" for segment in segments]
    found = bases(*urls)
    assert len({base.casefold() for base in found}) == len(urls)
    assert found == bases(*urls)
    for base in found:
        assert base.strip(". ")
        assert base.isprintable()
        assert "/" not in base
        assert not base.startswith(".")
        assert len(base.encode()) < 220


def test_a_file_name_keeps_its_suffix_and_may_be_empty() -> None:
    assert file_name("https://h/reports/resource-exclusions.csv?x=1") == "resource-exclusions.csv"
    assert file_name("https://h/reports/") == ""
