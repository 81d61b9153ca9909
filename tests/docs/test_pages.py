"""The pages and the code agree (architecture.md, rule 10): nothing is missing, nothing is left over."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest
import trustme

from config import STEPS as STEP_NAMES
from config import describe_keys, load_config
from deployments.sandbox.options import API_KEY, API_KEY_HEADER, PASSWORD, SETTINGS, TOKEN, USERNAME
from flows.commands import reference
from flows.job.record import JobRecord
from flows.job.running.state import JobState
from flows.reports.status import row_of, status_of
from flows.run import cli
from tasks.shared.report import Problem, StepReport, Waiting
from tests.docs.pages import DOCS, PAGES, README, PageBlock, blocks, command_lines, prose, read
from tests.docs.references import ROOT, references, syntax_tree

CONFIGURATION, COMMANDS, STEPS, OPERATING, TROUBLESHOOTING, JSON, FIRST_JOB = (
    ROOT / "docs" / f"{name}.md"
    for name in ("configuration", "commands", "steps", "operating", "troubleshooting", "json", "first-job")
)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield every command that can be called, with its full name."""
    context = click.Context(group, info_name="sluice")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


class TestCoverage:
    def test_every_configuration_key_and_variable_is_documented(self) -> None:
        page = read(CONFIGURATION)
        for info in describe_keys():
            assert f"`{info.key}`" in page
            assert f"`{info.env}`" in page

    def test_the_page_of_commands_is_current(self) -> None:
        assert read(COMMANDS) == reference.render(), "python -m flows.commands.reference > docs/commands.md"

    def test_every_command_has_a_line_that_an_ordinary_terminal_shows_in_full(self) -> None:
        root = click.Context(cli, info_name="sluice")
        groups = [cli, *(cli.get_command(root, name) for name in cli.list_commands(root))]
        for group in (one for one in groups if isinstance(one, click.Group)):
            shown = click.Context(group, info_name="sluice", terminal_width=80).get_help()
            assert "..." not in shown.partition("Commands:")[2], shown

    def test_every_command_and_option_is_documented_under_its_name(self) -> None:
        sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", read(COMMANDS), re.MULTILINE | re.DOTALL))
        for name, command in commands():
            for parameter in command.params:
                for option in parameter.opts if isinstance(parameter, click.Option) else ():
                    assert option in sections[name], f"{name} {option}"

    @pytest.mark.parametrize("page", [COMMANDS, OPERATING], ids=name_of)
    def test_every_exit_code_is_documented(self, page: Path) -> None:
        codes = {
            node.value.value
            for package in ("config", "tasks", "flows")
            for path in (ROOT / package).rglob("*.py")
            if "exit_code" in read(path)
            for node in ast.walk(syntax_tree(path))
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and "exit_code" in ast.unparse(node)
            and isinstance(node.value, ast.Constant)
        }
        assert codes >= {1, 2, 3, 4}
        for code in codes | {0, 5, 130, 143}:
            assert re.search(rf"^\| `?{code!s}`? \|", read(page), re.MULTILINE), code

    @pytest.mark.parametrize("page", [STEPS, CONFIGURATION], ids=name_of)
    def test_every_step_is_documented(self, page: Path) -> None:
        for name in STEP_NAMES:
            assert f"| `{name}`" in read(page)

    def test_every_step_has_a_section_of_its_own(self) -> None:
        for name in STEP_NAMES:
            assert f"`{name}`" in read(README)
            assert f"\n## {name}\n" in read(STEPS)

    @pytest.mark.slow
    def test_every_error_reference_has_one_row_and_no_row_is_left_over(self) -> None:
        rows = Counter(re.findall(r"^\| `([a-z0-9-]+)` \|", read(TROUBLESHOOTING), re.MULTILINE))
        assert sorted(references() - rows.keys()) == [], "add a row to docs/troubleshooting.md"
        assert sorted(rows.keys() - references()) == [], "no code gives these references any more"
        assert max(rows.values()) == 1

    def test_every_row_says_what_it_means_and_what_to_do(self) -> None:
        for row in re.findall(r"^\| `[a-z0-9-]+` \|.*$", read(TROUBLESHOOTING), re.MULTILINE):
            cells = [cell.strip() for cell in row.strip("|").split("|")]
            assert len(cells) == 3
            assert all(cells), row

    def test_every_state_of_a_job_and_of_a_step_is_documented(self) -> None:
        for state in JobState:
            assert f"| `{state.value}` |" in read(OPERATING)
        for state in StepReport.model_fields["state"].annotation.__args__:  # type: ignore[union-attr]
            assert f"`{state}`" in read(OPERATING)

    def test_every_key_of_the_json_is_documented_and_in_the_example(self) -> None:
        record = JobRecord(
            id="x",
            name="x",
            state=JobState.FAILED,
            steps=(StepReport(position=1, name="wait"),),
            error=Problem(reference="x", message="x"),
            waiting=Waiting(position=1, step="wait", directory="x", looked_at="x", since="x"),
        )
        waiting = record.model_copy(update={"state": JobState.WAITING})
        documented = read(JSON)
        for key in paths(status_of(record)) | paths(status_of(waiting)) | set(row_of(record)):
            assert f"`{key}`" in documented, key
        status, row = (json.loads(block.text) for block in blocks(JSON, "json"))
        assert shape(status) == shape(status_of(waiting))
        assert set(row[0]) == set(row_of(record))


def paths(tree: object, prefix: str = "") -> set[str]:
    """Return the key paths of the leaves of a JSON document."""
    if isinstance(tree, dict):
        return {path for name, value in tree.items() for path in paths(value, f"{prefix}.{name}" if prefix else name)}
    if isinstance(tree, list):
        return {path for value in tree for path in paths(value, f"{prefix}[]")}
    return {prefix}


def shape(status: dict[str, object]) -> dict[str, object]:
    """Return the keys of a status, at every level."""
    keys: dict[str, object] = {name: set(value) for name, value in status.items() if isinstance(value, dict)}
    steps = status["steps"]
    assert isinstance(steps, list)
    return keys | {"": set(status), "steps": {tuple(sorted(step)) for step in steps}}


@pytest.mark.e2e
@pytest.mark.parametrize(("module", "page"), [("deployments.serve", "prefect-ui"), ("deployments.sandbox", "sandbox")])
def test_every_option_of_a_program_beside_the_command_line_is_documented(module: str, page: str) -> None:
    ran = subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    options = set(re.findall(r"(?<![\w-])--[a-z-]+", ran.stdout)) - {"--help"}
    assert options
    for option in options:
        assert option in read(ROOT / "docs" / f"{page}.md"), option


def test_every_setting_and_variable_of_the_sandbox_is_documented() -> None:
    for name in (*SETTINGS, USERNAME, PASSWORD, TOKEN, API_KEY, API_KEY_HEADER):
        assert f"`{name}`" in read(ROOT / "docs/sandbox.md")


YAML = [block for page in PAGES for block in blocks(page, "yaml") if page.name != "from-aether.md"]
"""The file of aether has older names; ``tests/e2e/docs/test_connect.py`` runs it."""


@pytest.mark.parametrize("block", YAML, ids=str)
def test_an_example_configuration_loads_without_any_finding(block: PageBlock, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    file = tmp_path / "example.yaml"
    file.write_text(block.text, encoding="utf-8")
    names = set(re.findall(r"(?<!\$)\$\{(\w+)\}", block.text))
    environ = {name: str(tmp_path / "ca.pem") if name == "CA_BUNDLE" else "value" for name in names}
    loaded = load_config(file, environ=environ)
    assert [finding.render() for finding in loaded.warnings] == []
    for step in loaded.config.pipeline.enabled_steps:
        assert str(step) in STEP_NAMES


def test_there_are_examples_for_a_beginning_and_of_the_steps() -> None:
    assert {block.page for block in YAML} >= {FIRST_JOB, STEPS}


CALLS = [
    pytest.param(arguments, id=f"{name_of(page)}: {text}") for page in PAGES for text, arguments in command_lines(page)
]


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


def test_command_lines_are_found_on_the_pages() -> None:
    assert len(CALLS) >= 20


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_module_that_a_page_runs_exists(page: Path) -> None:
    for module in re.findall(r"python -m ([\w.]+)", read(page)):
        assert importlib.util.find_spec(module), module


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        parts = urlsplit(target)
        if parts.scheme:
            continue
        linked = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        assert linked.exists(), target
        assert linked.is_relative_to(ROOT)
        if parts.fragment:
            assert parts.fragment in anchors(linked), target


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_readme_links_every_page() -> None:
    for page in DOCS:
        assert f"](docs/{page.name})" in read(README)
    assert "](docs/decisions/README.md)" in read(README)


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_a_page_begins_with_its_goal(page: Path) -> None:
    first = next(text for text in prose(page).split("\n\n")[1:] if not text.startswith("<!--"))
    assert first.startswith("This page "), first


# Split, so that this file does not find itself.
MACHINE = ("/wo" + "rk/", "/ho" + "me/", "/ro" + "ot/", "/tm" + "p/", "/op" + "t/", "/Us" + "ers/")
REGISTRY = (
    "--index" + "-url",
    "--extra-" + "index",
    "--find-" + "links",
    "py" + "pi.",
    "/simp" + "le/",
    "anaconda" + ".org",
)


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / ".ci/run", ROOT / "constraints.txt", ROOT / "pyproject.toml"], ids=name_of
)
def test_no_page_names_a_path_of_a_machine_or_a_package_registry(page: Path) -> None:
    for word in (*MACHINE, *REGISTRY):
        assert word not in read(page), word


def test_every_test_that_the_threat_table_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", read(ROOT / "docs/security.md"))
    assert len(named) > 8
    for path, test in named:
        assert f"def {test}" in read(ROOT / path), f"{path}::{test}"


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    headings = re.findall(r"^(#+) (.+)$", read(ROOT / "CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == ("#", "Changelog")
    assert ("##", "[Unreleased]") in headings
