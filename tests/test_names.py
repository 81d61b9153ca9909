"""Names and docstrings that a program can judge (style.md, *Code* 2 and 4)."""

import re
from collections import defaultdict
from collections.abc import Iterator

from tests.conftest import ROOT

_DIRECTORIES = ("config", "tasks", "flows", "deployments", "tests")
_LONGEST_NAME = 79

BARE_VERBS = frozenset(
    {
        "ask",
        "asked",
        "asks",
        "asking",
        "gave",
        "give",
        "given",
        "gives",
        "giving",
        "hear",
        "heard",
        "hears",
        "keep",
        "keeping",
        "keeps",
        "kept",
        "knew",
        "know",
        "known",
        "knows",
        "leave",
        "leaves",
        "leaving",
        "left",
        "look",
        "looked",
        "looking",
        "looks",
        "said",
        "saw",
        "say",
        "saying",
        "says",
        "see",
        "seeing",
        "seen",
        "sees",
        "speak",
        "speaks",
        "spoke",
        "take",
        "taken",
        "takes",
        "taking",
        "tell",
        "telling",
        "tells",
        "told",
        "took",
        "want",
        "wanted",
        "wants",
    }
)
"""Verbs of saying and taking, which name nothing without an object."""

FILE_PROTOCOL = frozenset({"tell"})
"""Methods that Python's file objects have."""

_QUESTION = re.compile(r"""(?:\A|:(?:  # .*)?\n) *r?\"{3}((?:What|Whether|How|Where|Who|Why|When|Which)\b.*)""")
_DEFINITION = re.compile(r"^ *(?:(class)|(?:async )?def) (\w+)", re.MULTILINE)


def _modules() -> Iterator[tuple[str, str]]:
    """Yield each Python file of the project: its path from the root, and its text."""
    for directory in _DIRECTORIES:
        paths = sorted((ROOT / directory).rglob("*.py"))
        assert paths, directory
        yield from ((str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in paths)


def test_every_name_and_docstring_of_the_project_keeps_the_rules() -> None:
    """By its text, since syntax trees of all files take ten seconds."""
    classes, found = defaultdict(list), []
    for path, text in _modules():
        found += [f"{path}: a docstring begins with a question word: {line}" for line in _QUESTION.findall(text)]
        for is_class, name in _DEFINITION.findall(text):
            if is_class:
                classes[name].append(path)
            elif name.strip("_") in BARE_VERBS - FILE_PROTOCOL:
                found.append(f"{path}: {name} is a bare verb of saying or taking")
            elif len(name) > _LONGEST_NAME:
                found.append(f"{path}: {name} has more than {_LONGEST_NAME} characters")
    found += [f"{name} is the name of several classes: {places}" for name, places in classes.items() if places[1:]]
    assert found == []
