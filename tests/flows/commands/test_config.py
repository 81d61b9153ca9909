"""``config init``: a commented configuration with the blocks that its steps need."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from config import load_config
from flows.run import run

ALL = ("extractor", "pseudonymizer", "validation", "wait", "flattening", "send")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_it_writes_passes_the_check_and_it_says_what_is_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "init", "my.yaml", "--steps", "extractor,pseudonymizer,send"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("my.yaml is written: extractor, pseudonymizer, send\n")
    assert "set these variables: EXTRACTOR_PASSWORD, SEND_PASSWORD\n" in out
    assert out.endswith("config check my.yaml\n")
    assert stat.S_IMODE(Path("my.yaml").stat().st_mode) == 0o600
    assert run(["config", "check", "my.yaml"]) == 2
    for name in ("EXTRACTOR_PASSWORD", "SEND_PASSWORD"):
        monkeypatch.setenv(name, "x")
    assert run(["config", "check", "my.yaml"]) == 0


def test_it_never_writes_over_anything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "init"]) == 0
    text = Path("sluice.yaml").read_text()
    assert "enabled_steps: [local_import, wait, send]" in text
    Path("directory").mkdir()
    Path("dangling").symlink_to("nowhere")
    for name in ("sluice.yaml", "directory", "dangling"):
        assert run(["config", "init", name, "--steps", "http_import"]) == 2
        assert "error[config-exists]" in capsys.readouterr().err
    assert Path("sluice.yaml").read_text() == text
    assert run(["config", "init", "nowhere/c.yaml"]) == 2


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ("extractr,send", "did you mean extractor?"),
        ("send,extractor", "error[steps-import-first]"),
        (" ", "error[steps-missing]"),
        ("local_import,wait,wait", "error[steps-wait-twice]"),
    ],
)
def test_steps_that_are_no_pipeline_leave_no_file(capsys: pytest.CaptureFixture[str], steps: str, says: str) -> None:
    assert run(["config", "init", "--steps", steps]) == 2
    assert says in capsys.readouterr().err
    assert not Path("sluice.yaml").exists()


@pytest.mark.parametrize("steps", [ALL, ("local_import",), ("http_import", "validation"), ("local_import", "send")])
def test_it_has_the_blocks_of_its_steps_and_no_others(steps: tuple[str, ...]) -> None:
    assert run(["config", "init", "--steps", ",".join(steps)]) == 0
    text = Path("sluice.yaml").read_text()
    blocks = set(re.findall(r"(?m)^  #?(\w+):$", text)) - {"crtdl_preprocessing"}
    assert blocks == set(steps) - {"wait"}
    assert ("crtdl_preprocessing" in text) is bool({"extractor", "flattening"} & set(steps))
    loaded = load_config("sluice.yaml", environ=dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "x"))
    assert (loaded.config.pipeline.enabled_steps, loaded.warnings) == (steps, ())


def test_the_check_finds_a_bundle_of_certificates_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "init", "--steps", "local_import"]) == 0
    assert run(["config", "check", "sluice.yaml", "--set", "tls.ca_cert_path=nowhere.pem"]) == 2
    assert "error[tls-ca-bundle]" in capsys.readouterr().err
