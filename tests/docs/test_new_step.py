"""A new step, made exactly as ``docs/development.md`` describes it, works everywhere (architecture.md, rule 2.1)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import ROOT, Commands
from tests.docs.pages import section

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DEVELOPMENT = ROOT / "docs/development.md"
CATALOGUE_END = "        reads_tables=False,\n    ),\n)\n"
"""The end of the catalogue in ``config/steps.py``, where the page's entry goes."""


def code(text: str) -> list[str]:
    """Return the Python blocks of an indented list."""
    return [block.partition("```")[0] for block in textwrap.dedent(text).split("```python\n")[1:]]


def edit(path: Path, old: str, new: str) -> None:
    """Replace the one occurrence of ``old`` in a file."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path}: {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a copy of the project with the step and the pages of the how-to."""
    tree = tmp_path / "tree"
    tree.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for name in (".ci", "config", "tasks", "flows", "deployments", "tests", "docs"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, tree)
    step, entry = code(section(DEVELOPMENT, "A new step"))
    package = tree / "tasks/line_counts"
    package.mkdir()
    (package / "__init__.py").write_text('"""Count the lines of each file."""\n', encoding="utf-8")
    (package / "step.py").write_text(textwrap.dedent(step), encoding="utf-8")
    edit(tree / "config/steps.py", CATALOGUE_END, CATALOGUE_END.removesuffix(")\n") + f"    {entry.strip()},\n)\n")
    steps = tree / "docs/steps.md"
    edit(steps, "| `send` | load", "| `line_counts` | count the lines of each file |\n| `send` | load")
    steps.write_text(steps.read_text(encoding="utf-8") + "\n## line_counts\n\nCounts the lines.\n", encoding="utf-8")
    edit(
        tree / "docs/job-directory.md", "| `csv/` |", "| `line_counts/` | lines of each file | no |\n| `csv/` |"
    )  # fmt: skip
    edit(tree / "README.md", "`flattening` and `send`.", "`flattening`, `line_counts` and `send`.")
    for page, module in (("docs/configuration.md", ()), ("config/pipeline.schema.json", ("schema",))):
        made = run(tree, "-m", "config.reference", *module)
        (tree / page).write_text(made.stdout, encoding="utf-8")
    return tree


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python module of the copied project. Raises ``AssertionError`` with its output when it fails."""
    # The table of all characters need not be made again.
    environment = os.environ | {"HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis")}
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


def test_it_runs_in_a_job_and_every_generated_text_has_it(tree: Path, tmp_path: Path, sluice_process: Commands) -> None:
    commands = sluice_process
    commands.environment["PYTHONPATH"] = str(tree)
    schema = json.loads(commands("config", "schema").out)
    assert "line_counts" in json.dumps(schema["properties"]["pipeline"]["properties"]["enabled_steps"])
    made = commands("config", "init", "own.yaml", "--steps", "local_import,line_counts,wait,send")
    assert made.code == 0, made.err
    assert "enabled_steps: [local_import, line_counts, wait, send]" in (tmp_path / "own.yaml").read_text()

    data = tmp_path / "data"
    data.mkdir()
    line = '{"resourceType":"Patient","id":"p%d"}\n'
    (data / "a.ndjson").write_text("".join(line % number for number in range(12)), encoding="utf-8")
    config = tmp_path / "config.yaml"
    config.write_text(
        f"pipeline: {{enabled_steps: [local_import, line_counts, wait]}}\njobs_dir: {tmp_path / 'jobs'}\n"
        f"services: {{local_import: {{dir: {data}}}}}\n",
        encoding="utf-8",
    )
    ran = commands("pipeline", "start", config)
    assert ran.code == 0, ran.err
    counts = tmp_path / "jobs" / ran.job / "line_counts/counts.json"
    assert json.loads(counts.read_text()) == {"a.ndjson.zst": 12}
    status = commands.status(ran.job)
    assert [(step["name"], step["state"]) for step in status["steps"]] == [
        ("local_import", "completed"), ("line_counts", "completed"), ("wait", "waiting"),
    ]  # fmt: skip
    report = commands("job", "report", config, ran.job)
    assert report.code == 0, report.err
    done = commands("pipeline", "continue", config, ran.job, "--approve", "--despite", "a test")
    assert done.code == 0, done.err


def test_the_tests_of_catalogue_configuration_and_pages_hold_with_it(tree: Path) -> None:
    run(
        tree, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "tests/config",
        "--ignore=tests/config/test_peer_files.py", "tests/docs/test_pages.py", "tests/docs/test_docstrings.py",
        "tests/tasks/test_catalogue.py", "tests/test_layers.py", "tests/flows/test_no_step_names.py",
    )  # fmt: skip
