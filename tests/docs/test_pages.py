"""Commands, configurations and links on the pages are right."""

from __future__ import annotations

import contextlib
import re
from itertools import dropwhile
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest
import trustme

from config import load_config
from flows.run import cli
from tests.conftest import ROOT
from tests.docs.pages import PAGES, PageBlock, blocks, command_lines, prose

CALLS = [
    pytest.param(arguments, id=f"{page.relative_to(ROOT)}: {text}")
    for page in PAGES
    for text, arguments in command_lines(page)
]
CONFIGURATIONS = [block for page in PAGES for block in blocks(page, "yaml")]


@pytest.mark.parametrize("arguments", CALLS)
def test_a_command_line_on_a_page_parses(arguments: list[str]) -> None:
    context = click.Context(cli, info_name="sluice")
    command: click.Command = cli
    before = {name for option in cli.params for name in option.opts}
    rest = [*dropwhile(before.__contains__, arguments)]
    while isinstance(command, click.Group):
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None, arguments
        command = found
    with contextlib.suppress(click.exceptions.Exit):  # --help
        command.make_context("sluice", rest)


@pytest.mark.parametrize("block", CONFIGURATIONS, ids=str)
def test_an_example_configuration_loads_without_any_finding(block: PageBlock, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    file = tmp_path / "example.yaml"
    file.write_text(block.text, encoding="utf-8")
    names = set(re.findall(r"(?<!\$)\$\{(\w+)\}", block.text))
    environ = {name: str(tmp_path / "ca.pem") if name == "CA_BUNDLE" else "value" for name in names}
    assert [finding.render() for finding in load_config(file, environ=environ).warnings] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        parts = urlsplit(target)
        if not parts.scheme:
            linked = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert linked.exists(), target
            assert not parts.fragment or parts.fragment in anchors(linked), target


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
