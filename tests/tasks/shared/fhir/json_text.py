"""JSON as text, as hypothesis writes it: white space, escapes, odd numbers, keys in any order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

BLANKS = st.sampled_from(["", "", "", " ", "\t", "  ", " \r "])
"""White space without line feeds: the text must be one line."""

_TEXTS = st.one_of(st.text(max_size=12), st.text(alphabet='{}[]",:\\é', max_size=12))
STRINGS = st.builds(json.dumps, _TEXTS, ensure_ascii=st.booleans())
SCALARS = st.one_of(STRINGS, st.sampled_from(["1.50", "1E2", "-0.0", "0", "12e-7", "true", "false", "null"]))


@st.composite
def _array(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    return "[" + _joined(draw, draw(st.lists(values, max_size=4))) + "]"


@st.composite
def _object(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    keys = draw(st.lists(st.one_of(STRINGS, st.sampled_from(['"entry"', '"id"'])), max_size=4))
    return "{" + _joined(draw, [_member(draw, key, draw(values)) for key in keys]) + "}"


def _joined(draw: st.DrawFn, parts: Sequence[str]) -> str:
    return ",".join(draw(BLANKS) + part + draw(BLANKS) for part in parts) or draw(BLANKS)


def _member(draw: st.DrawFn, key: str, value: str) -> str:
    return key + draw(BLANKS) + ":" + draw(BLANKS) + value


VALUES: st.SearchStrategy[str] = st.recursive(
    SCALARS, lambda values: st.one_of(_array(values), _object(values)), max_leaves=8
)
OBJECTS = _object(VALUES)


@dataclass(frozen=True)
class DrawnBundle:
    """A Bundle and what stands between the commas of its entries; ``None`` when it has no ``entry``."""

    line: bytes
    pieces: list[bytes] | None


@st.composite
def bundles(draw: st.DrawFn) -> DrawnBundle:
    """Draw a Bundle on one line; its own keys stand once each."""
    keys = draw(st.lists(STRINGS, max_size=3, unique_by=json.loads))
    reserved = {"meta", "resourceType", "id", "type", "total", "entry"}
    members = [(key, draw(VALUES)) for key in keys if json.loads(key) not in reserved]
    if draw(st.booleans()):
        members.append(('"meta"', '{"entry":[' + ",".join(draw(st.lists(st.just("{}"), max_size=2))) + "]}"))
    members.append(('"resourceType"', '"Bundle"'))
    if draw(st.booleans()):
        members.append(('"id"', '"b-1"'))
    if draw(st.booleans()):
        members.append(('"type"', '"transaction"'))
    if draw(st.booleans()):
        members.append(('"total"', "1.50"))
    pieces = None
    if draw(st.sampled_from([True, True, True, False])):
        pieces = [
            draw(BLANKS) + entry + draw(BLANKS)
            for entry in draw(st.lists(st.one_of(OBJECTS, st.just("{}")), max_size=5))
        ]
        members.append((draw(st.sampled_from(['"entry"', '"entry"', '"\\u0065ntry"'])), "[" + ",".join(pieces) + "]"))
    members = draw(st.permutations(members))
    line = draw(BLANKS) + "{" + _joined(draw, [_member(draw, *member) for member in members]) + "}" + draw(BLANKS)
    return DrawnBundle(line.encode(), None if pieces is None else [piece.encode() for piece in pieces])
