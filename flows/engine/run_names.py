"""Recognise the names that Prefect's server and UI generate for runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import prefect

_GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho|sigma|tau|upsilon|phi|chi"
    "|psi|omega"
)
_OF_THE_UI = re.compile(rf"(?:{_GREEK})\d*-(?P<star>[a-z-]+)")


def is_made_up(name: str) -> bool:
    """Return whether Prefect generated the name: an adjective and an animal, or a star.

    The words of the UI are in its files; without those, a name that looks like a star counts as typed.
    """
    first, _, last = name.rpartition("-")
    if first in _words("adj_any") and last in _words("subj"):
        return True
    found = _OF_THE_UI.fullmatch(name)
    return found is not None and bool({found["star"], found["star"].rpartition("-")[0]} & _stars())


def _words(kind: str) -> set[str]:
    """Return the words of a list of ``coolname``, which Prefect's server uses, and of the lists that it includes."""
    import coolname.data

    made: Any = coolname.data.config[kind]
    words = {str(word) for word in made.get("words", ())}
    words |= {"-".join(words) for words in (str(phrase).split() for phrase in made.get("phrases", ()))}
    return words.union(*map(_words, made.get("lists", ())))


def _stars() -> set[str]:
    for path in sorted(Path(prefect.__ui_static_path__).glob("assets/*.js")):
        found = re.search(rb"[\"'`](andromedae\.antliae\.[a-z.-]+)[\"'`]", path.read_bytes())
        if found is not None:
            return set(found[1].decode().split(".")) - {""}
    return set()
