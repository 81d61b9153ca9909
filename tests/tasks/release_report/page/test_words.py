"""Each name that a release report can have has words in both languages: found in the sources, not by running them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tasks.release_report.page.words import LANGUAGES, Group, Words, joined, vocabulary
from tasks.release_report.report.document import ReportFinding
from tasks.release_report.report.outline import FINDINGS, TABLES
from tests.conftest import ROOT
from tests.peers import release_report as reports
from tests.sources import syntax_tree

PACKAGE = ROOT / "tasks/release_report"
SAYING = {"build.py", "changes.py", "facts.py", "findings.py", "risk.py", "disclosure.py"}
"""Modules that name something for the page, beside those of the sections."""

SECTIONS = {"SectionRule", "section"}
"""Calls whose second argument is the name of a section."""

KINDS = (
    "name", "address", "address-part", "concept-text", "device", "telecom", "identifier", "photo", "attachment",
    "narrative", "text", "display", "value",
)  # fmt: skip
PUT_TOGETHER = (
    [f"kind-{kind}" for kind in KINDS]
    + [f"ids-{kind}" for kind in ("original", "hashed", "uuid", "sequential", "other")]
    + [f"auth-{kind}" for kind in ("none", "basic", "oauth2", "api_key", "basic_and_api_key", "oauth2_and_api_key")]
    + [f"stage-{stage}" for stage in ("consent", "direct_load", "cascading_delete", "(other)")]
    + [f"by-{by}" for by in ("birth", "sex", "region", "birth-sex", "birth-region", "sex-region", "birth-sex-region")]
    + ["stop", "look", "note", "tell", "fail"]
)
"""Words whose names the sources make out of parts."""

_KEBAB = re.compile(r"@?[a-z][a-z0-9]*(-[a-z0-9]+)+")
_NAME = re.compile(r"[a-z][a-z0-9_-]*[a-z0-9]")


def trees() -> Iterator[ast.Module]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name in SAYING or path.parent.name == "sections":
            yield syntax_tree(path)


def texts(node: ast.AST | None) -> list[str]:
    """Return the string constants of a name, or of a tuple or list of them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    return [text for one in getattr(node, "elts", ()) for text in texts(one)]


@cache
def named() -> frozenset[tuple[Group, str]]:
    """Return the words that the sources name, by group."""
    found: set[tuple[Group, str]] = {("tables", name) for name in TABLES}
    found |= {("columns", column) for rule in TABLES.values() for column in rule.columns}
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                if called == "fact":
                    found |= {("facts", one) for one in texts(node.args[0])}
                if called in SECTIONS and len(node.args) > 1:
                    found |= {("sections", one) for one in texts(node.args[1])}
            elif isinstance(node, (ast.comprehension, ast.For)) and ast.unparse(node.target) == "name":
                found |= {("facts", one) for one in texts(node.iter)}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("@"):
                found.add(("words", node.value[1:]))
    return frozenset((group, name) for group, name in found if _NAME.fullmatch(name))


@cache
def kebab() -> frozenset[str]:
    """Return the names of sentences and findings: only they are written with dashes in this package."""
    return frozenset(
        node.value.removeprefix("@")
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _KEBAB.fullmatch(node.value)
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_name_in_the_sources_has_words(language: str) -> None:
    words = Words(language, 5)
    assert len(named()) > 80
    missing = sorted(f"{group}: {name}" for group, name in named() if not words.has_words(group, name))
    assert missing == []
    known = vocabulary(language)
    assert sorted(kebab() - known.said.keys() - known.words.keys() - known.findings.keys() - set(KINDS)) == []
    assert [name for name in PUT_TOGETHER if name not in known.words] == []
    assert FINDINGS.keys() <= known.findings.keys()


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_section_and_each_column_of_the_samples_has_words(language: str) -> None:
    words = Words(language, 5)
    for section in reports.rich().sections:
        assert words.has_words("sections", section.name)
        for table in section.tables:
            assert words.has_words("tables", table.name), table.name
        for fact in section.facts:
            assert words.has_words("facts", fact.name), fact.name
        for said in section.said:
            assert words.has_words("said", said), said
    for finding in reports.rich().findings:
        assert finding.code in vocabulary(language).findings, finding.code


def test_both_languages_say_the_same_things_with_the_same_places() -> None:
    english, german = (vocabulary(language) for language in LANGUAGES)
    for group in ("page", "sections", "tables", "columns", "facts", "said", "words"):
        en, de = getattr(english, group), getattr(german, group)
        assert en.keys() == de.keys(), group
        for name in en:
            places = [sorted(set(re.findall(r"\{\w+\}", text))) for text in (en[name], de[name])]
            assert places[0] == places[1], name
            assert en[name].count("|") == de[name].count("|"), name
    assert english.findings.keys() == german.findings.keys()
    for code, found in english.findings.items():
        other = german.findings[code]
        assert all((found.say, found.name, other.say, other.name)), code
        assert bool(found.do) == bool(other.do), code
        assert set(re.findall(r"\{\w+\}", found.say)) == set(re.findall(r"\{\w+\}", other.say)), code


def test_a_sentence_names_its_place_once() -> None:
    words = Words("en", 5)
    finding = ReportFinding(
        level="stop", code="original-left", about="Patient.x", section=7, values={"kind": "@kind-name"}
    )
    assert joined(words.finding(finding), str, str).count("Patient.x") == 1
    assert "(name)" in joined(words.finding(finding), str, str)
    assert words.value("@original-left") == "remaining original values"
    assert words.value("@nobody knows this") == "@nobody knows this"
