"""The pages README, CHANGELOG and ``docs/``, and their blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

README = ROOT / "README.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

_INSTALL = "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e '.[{}]'"
DEMO = f"{_INSTALL.format('demo')} && .venv/bin/sluice demo"
TESTS = f"{_INSTALL.format('dev')} && .venv/bin/python -m pytest"
"""The two commands of the README."""

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class PageBlock:
    """A fenced block of a page, and the line it begins in."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, *languages: str) -> Iterator[PageBlock]:
    """Yield the fenced blocks of a page; of the given languages, or all."""
    text = read(page)
    for match in _FENCE.finditer(text):
        if not languages or match["language"] in languages:
            yield PageBlock(page, text.count("\n", 0, match.start()) + 1, match["language"], match["text"])


def example(page: str, beginning: str) -> PageBlock:
    """Return the one block of a page that begins with these words."""
    (found,) = (block for block in blocks(ROOT / page) if block.text.startswith(beginning))
    return found


def prose(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return _FENCE.sub("", read(page))


def command_lines(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield every call of our program on a page, in blocks and between backticks: as written, and its arguments."""
    for block in blocks(page, "bash", ""):
        for line in block.text.splitlines():
            if "[OPTIONS]" not in line:  # the usage lines of the commands page
                yield from _calls(line)
    for inline in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page)):
        yield from _calls(inline)


def _calls(line: str) -> Iterator[tuple[str, list[str]]]:
    if not re.search(r"\bsluice |flows\.run ", line):
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in (*lexer, ";"):
        if not set(word) <= set("();<>|&"):
            words.append(word)
            continue
        program = (
            1 if words[:1] in (["sluice"], [".venv/bin/sluice"]) else 3 if words[1:3] == ["-m", "flows.run"] else 0
        )
        if program and len(words) > program:
            yield " ".join(words), words[program:]
        words = []
