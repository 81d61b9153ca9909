"""Every example of the pages runs in a test, or it is on the list of those that do not, with the reason (issue 7)."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.docs.not_run import ELSEWHERE, GENERATED, NOT_RUN, NOT_SPOKEN
from tests.docs.pages import DEMO, PAGES, PageBlock, blocks, called, read, spoken
from tests.docs.references import ROOT, syntax_tree

BLOCKS = [block for page in PAGES for block in blocks(page) if str(page.relative_to(ROOT)) not in GENERATED]


@cache
def constants() -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
    """Return the blocks that tests of pages read with ``example(page, beginning)``, and every text in these tests."""
    taken, texts = set(), set()
    for path in ROOT.glob("tests/**/docs/test_*.py"):
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "example":
                page, beginning = node.args
                demo = isinstance(beginning, ast.Name) and beginning.id == "DEMO"
                taken.add((ast.literal_eval(page), DEMO if demo else ast.literal_eval(beginning)))
    return frozenset(taken), frozenset(texts)


def named(block: PageBlock, names: frozenset[tuple[str, str]]) -> list[str]:
    """Return those of the names that mean this block."""
    page = str(block.page.relative_to(ROOT))
    return [beginning for where, beginning in names if where == page and block.text.startswith(beginning)]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_an_example_runs_or_has_a_reason_not_to(block: PageBlock) -> None:
    # Configurations of docs/ are collected by test_configurations, whatever they begin with.
    run = block.language == "yaml" or bool(named(block, constants()[0] | ELSEWHERE.keys()))
    reasons = named(block, frozenset(NOT_RUN))
    assert run or reasons, "let a test take it with example(…), or say in not_run.py why none can"
    assert not (run and reasons), "it runs: it is not on the list any more"
    assert len(reasons) <= 1


@pytest.mark.parametrize("name", [*NOT_RUN, *ELSEWHERE], ids=" ".join)
def test_what_is_on_a_list_is_still_on_its_page(name: tuple[str, str]) -> None:
    assert any(named(block, frozenset({name})) for block in BLOCKS)


@pytest.mark.parametrize(("name", "module"), ELSEWHERE.items(), ids=str)
def test_what_runs_elsewhere_is_taken_from_the_page_there(name: tuple[str, str], module: str) -> None:
    assert name[0] in read(ROOT / module)


@pytest.mark.parametrize("name", NOT_RUN, ids=" ".join)
def test_what_no_test_runs_names_files_that_exist(name: tuple[str, str]) -> None:
    (text,) = (block.text for block in BLOCKS if named(block, frozenset({name})))
    for path in re.findall(r"(?<![\w/])(?:deployments|tests|docs|config)/[\w./-]+\w", text):
        assert (ROOT / path).exists(), path


def plain(command: str) -> str:
    """Return a command line without the name of the configuration, which pages write in several ways."""
    return re.sub(r"\b(FILE|config\.yaml|first\.yaml)(?= |$)", "CONFIG", command)


def test_every_command_in_a_sentence_runs_in_a_test_too() -> None:
    said = {plain(command) for page in PAGES for command in spoken(page)}
    lines = {plain(command) for block in BLOCKS for command, _ in called(block)}
    run = {plain(text) for text in constants()[1]}
    assert len(said) > 20
    assert sorted(said - lines - run - NOT_SPOKEN.keys()) == []
    assert NOT_SPOKEN.keys() <= said
