"""One pass over a Bundle reads what reading it part by part does, and no key that stands twice slips through."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.pseudonymizer import answer_check
from tasks.pseudonymizer.answer_check import OutlineError, ResourceSummary, outline_of
from tasks.shared.fhir.envelope import open_envelope
from tests.conftest import examples
from tests.peers.pseudonymization import bundle, observation, patient

_PATIENT = patient("p", name=[{"family": 'Ö"\\'}])
BUNDLE = json.dumps(bundle("b", _PATIENT, observation("o", "p")), ensure_ascii=False, separators=(",", ":")).encode()


def in_parts(text: bytes) -> ResourceSummary:
    with patch.object(answer_check, "member_entries", return_value=None):
        return outline_of(text)


def read(text: bytes, outline: Any) -> Any:
    """Return all facts about a text, or the reason for its refusal."""
    try:
        found = outline(text)
        members = [(kind, {name: bytes(raw) for name, raw in one.items()}) for kind, one in found.all_members()]
    except OutlineError as problem:
        return str(problem)
    return {
        one.name: getattr(found, one.name) for one in fields(found) if one.name not in ("root", "members", "raws")
    }, members


def test_a_bundle_without_white_space_is_read_in_one_pass() -> None:
    assert outline_of(BUNDLE).members is not None
    assert read(BUNDLE, outline_of) == read(BUNDLE, in_parts)


_TEXTS = ['"entry":[', '"entry":[]', ",", "{", "}", "[", "]", '"', "\\", " ", "\n", "null", "7", '"a":1,', '"id":"x",']
_TEXTS += ['"entry":null,', '"resource":{},', '"resource":null,', '"fullUrl":"u",', '"fullUrl":7,', '"search":{},']
_TEXTS += ['"request":{"url":null},', '"request":null,', '"i\\u0064":"y",', '"resourceType":"Bundle",', '"link":[],']
_TEXTS += ['"contained":[{"entry":[1]}],', '"\\"entry":[1],', '"entr\\u0079":[],', "\x00", "\x7f", "é", "\ud800"]
_PLACES = [place for place in range(len(BUNDLE)) if chr(BUNDLE[place]) in '{}[],:"']


@pytest.mark.slow
@settings(max_examples=examples(1500), deadline=None)
@given(
    changes=st.lists(st.tuples(st.sampled_from(_PLACES), st.integers(0, 9), st.sampled_from(_TEXTS)), max_size=3),
    moved=st.booleans(),
)
def test_one_pass_reads_what_many_do(changes: list[tuple[int, int, str]], moved: bool) -> None:
    text = BUNDLE if not moved else b"{" + BUNDLE[BUNDLE.index(b'"entry"') : -1] + b',"resourceType":"Bundle","type":1}'
    for place, cut, inserted in changes:
        text = text[: place + 1] + inserted.encode("utf-8", "surrogatepass") + text[place + 1 + max(0, cut - 6) :]
    found = read(text, outline_of)
    assert found == read(text, in_parts)
    if not isinstance(found, str) and found[0]["type"] == "Bundle":
        open_envelope(text)  # so a part of a Bundle that was read can be taken apart


@pytest.mark.parametrize("name", ["resourceType", "id", "type", "entry", "fullUrl", "resource", "request", "subject"])
def test_a_key_that_stands_twice_is_noticed_wherever_it_stands(name: str) -> None:
    places = [place for place in range(len(BUNDLE)) if BUNDLE.startswith(f'"{name}":'.encode(), place)]
    assert places
    for place in places:
        for value in ("1", "[]", '"x"', "{}", "null"):
            text = BUNDLE[:place] + f'"{name}":{value},'.encode() + BUNDLE[place:]
            assert isinstance(read(text, outline_of), str), text


def test_no_key_can_be_spelled_shorter_than_it_is_written_anew() -> None:
    """Else a key that stands twice could make up for it: a text is taken by its length."""
    decode, encode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode, msgspec.json.encode
    for code in (*range(0x20, 0x22), *range(0x23, 0x5C), *range(0x5D, 0x2100), 0xFFFF, 0x10000, 0x10FFFF):
        text = f'{{"{chr(code)}":1}}'.encode()
        assert len(encode(decode(text))) <= len(text), code
    for escaped in ("n", "t", "r", "b", "f", '"', "\\", "/", "u0000", "u001f", "u007f", "u00e9"):
        text = f'{{"\\{escaped}":1}}'.encode()
        assert len(encode(decode(text))) <= len(text), escaped


@pytest.mark.parametrize(
    "text",
    [
        b"<html>CANARY</html>", b"", b"[]", b"null", b'{"resourceType":"CANARY"', b'{"resourceType":"P","a":"\xff"}',
        b'{"resourceType":"P","a":"\n"}', b"{}", b'{"resourceType":"Bundle","entry":{}}', b"[" * 100_000,
        b'{"resourceType":"P","a":"' + "ü".encode() * 600_000 + b'\xc3"}', b'{"resourceType":"P","id":7}',
    ],
)  # fmt: skip
def test_what_is_no_resource_is_refused_without_quoting_it(text: bytes) -> None:
    with pytest.raises(OutlineError) as caught:
        outline_of(text)
    assert "CANARY" not in str(caught.value)


def test_other_resources_may_have_an_entry_of_another_shape() -> None:
    assert outline_of(b'{"resourceType":"List","entry":[{"item":{}}]}').resources == 1
    assert outline_of(b'{"resourceType":"Linkage","id":"x","entry":7}').resources == 1
    long = '{"resourceType":"P","a":"' + "ü" * 1_200_001 + '€"}'
    assert outline_of(long.encode()).type == "P"
