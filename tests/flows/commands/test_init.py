"""``config init`` on the command line and on a terminal (4-product.md §2)."""

from __future__ import annotations

import io
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from config import load_config
from flows.commands import init
from flows.run import run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_it_writes_passes_the_check_and_it_says_what_is_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "init", "my.yaml", "--steps", "extractor,pseudonymizer,send"]) == 0
    out = capsys.readouterr().out
    assert "set these variables: EXTRACTOR_PASSWORD, SEND_PASSWORD\n" in out
    assert "  services.extractor.base_url\n" in out
    assert out.endswith(f"next: {sys.executable} -m flows.run config check my.yaml\n")
    assert stat.S_IMODE(Path("my.yaml").stat().st_mode) == 0o600
    assert run(["config", "check", "my.yaml"]) == 2
    for name in ("EXTRACTOR_PASSWORD", "SEND_PASSWORD"):
        monkeypatch.setenv(name, "x")
    assert run(["config", "check", "my.yaml"]) == 0


def test_it_writes_over_nothing_unless_it_is_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    Path("sluice.yaml").write_text("mine")
    assert run(["config", "init"]) == 2
    assert "error[config-exists]" in capsys.readouterr().err
    assert Path("sluice.yaml").read_text() == "mine"
    assert run(["config", "init", "--force"]) == 0
    assert "enabled_steps: [local_import, wait, send]" in Path("sluice.yaml").read_text()
    Path("directory").mkdir()
    Path("dangling").symlink_to("nowhere")
    for name in ("directory", "dangling"):
        assert run(["config", "init", name, "--force"]) == 2
    assert run(["config", "init", "nowhere/c.yaml"]) == 2


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ("extractr,send", "extractr is not the name of a step\n  --steps\nhint: did you mean extractor?"),
        ("send,extractor", "error[steps-import-first]"), (" ", "no step is named"), ("local_import,wait,wait", "twice"),
    ],
)  # fmt: skip
def test_steps_that_are_no_pipeline_leave_no_file(capsys: pytest.CaptureFixture[str], steps: str, says: str) -> None:
    assert run(["config", "init", "--steps", steps]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert "/tmp" not in err
    assert not Path("sluice.yaml").exists()


def test_on_a_terminal_it_asks_until_an_answer_can_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = ["local_import, sned", "local_import, send", "", "transfer_load", "fhir.example", "https://fhir.example",
               "my project", "", "-", "Study: hip", "-", "Project Demo", "", "-"]  # fmt: skip
    monkeypatch.setattr(init, "on_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(answers) + "\n"))
    assert run(["config", "init"]) == 0, capsys.readouterr()
    out = capsys.readouterr().out
    assert "did you mean send?" in out
    assert out.index("\nA directory of NDJSON files (step: local_import)\n") < out.index("services.local_import.dir")
    assert out.index("S3-compatible bucket (step: send)\n") < out.index("services.send.send_as (")
    assert "User name, such as sluice. Enter - if the service needs none.\nservices.send.auth.username [-]: " in out
    assert "must begin with http:// or https://" in out
    assert "set these variables" not in out
    text = Path("sluice.yaml").read_text()
    assert "    url: https://fhir.example\n" in text
    assert '      project_identifier: "my project"\n' in text
    assert "    #auth:\n" in text
    assert "report.purpose [-]: " in out
    loaded = load_config(Path("sluice.yaml")).config.report
    assert (loaded.purpose, loaded.recipient) == ("Study: hip", "Project Demo")
    assert (loaded.legal_basis, loaded.retention, loaded.contact) == (None, None, None)
    assert "  #legal_basis: " in text
    assert run(["config", "check", "sluice.yaml"]) == 0


def test_without_an_answer_nothing_is_written_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(init, "on_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("local_import\n"))
    assert run(["config", "init"]) == 130
    assert capsys.readouterr().err.endswith("\nno answer was given\n")
    assert not Path("sluice.yaml").exists()


@pytest.fixture
def piped(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Let a text be the standard input of the command."""
    with (here / "answers").open("w+", encoding="latin-1") as file:

        def pipe(text: str) -> None:
            file.write(text)
            file.seek(0)
            file.reconfigure(encoding="utf-8")
            monkeypatch.setattr("sys.stdin", file)

        yield pipe


def test_a_pipe_answers_the_same_questions_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], piped: Callable[[str], None]
) -> None:
    answers = "local_import, send\n\ntransfer_load\nhttps://fhir.example\nmy project\n\n-\nStudy\n" + "-\n" * 4
    piped(answers)
    assert run(["config", "init"]) == 0, capsys.readouterr()
    from_pipe, shown = Path("sluice.yaml").read_text(), capsys.readouterr().out
    assert "services.send.send_as (direct_resource_load, transfer_load" in shown
    assert "[direct_resource_load]: transfer_load\n" in shown
    monkeypatch.setattr(init, "on_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answers))
    assert run(["config", "init", "--force"]) == 0
    assert Path("sluice.yaml").read_text() == from_pipe
    assert "    url: https://fhir.example\n" in from_pipe


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"], ids=["UTF-8", "locale C"])
@pytest.mark.parametrize(
    ("answers", "problem", "key"),
    [
        ("local_import, send\n", "ended before this question", "services.local_import.dir"),
        ("", "ended before this question", "steps"),
        ("local_import, sned\n", "local_import, sned cannot be used: sned is not the name of a step", "steps"),
        ("local_import, send\n\ntransfer\n", "the piped answer transfer cannot be used", "services.send.send_as"),
        ("local_import\xff\n", "cannot be decoded", "steps"),
    ],
    ids=["too few", "none", "no step", "no choice", "no text"],
)
def test_unusable_piped_answers_write_no_file_and_the_error_names_the_question(
    capsys: pytest.CaptureFixture[str], piped: Callable[[str], None], answers: str, problem: str, key: str, errors: str
) -> None:
    """A terminal is asked again. From a pipe, the next line would answer the wrong question."""
    piped(answers)
    cast("io.TextIOWrapper", sys.stdin).reconfigure(errors=errors)
    assert run(["config", "init"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error[no-answer]: ")
    assert problem in err
    assert f"\n  {key}\n" in err
    assert not Path("sluice.yaml").exists()
