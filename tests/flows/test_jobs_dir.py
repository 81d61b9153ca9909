"""The jobs directory is private to its user."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from flows.jobs_dir import check_jobs_dir
from tasks.shared.errors import InputError

COMMANDS = [
    ("pipeline", "start", "config.yaml"),
    ("pipeline", "plan", "config.yaml"),
    ("pipeline", "continue", "config.yaml", "latest", "--approve"),
    ("pipeline", "status", "config.yaml", "latest"),
    ("job", "list", "config.yaml"),
    ("job", "report", "config.yaml", "latest"),
    ("job", "delete", "config.yaml", "latest"),
    ("job", "prune", "config.yaml", "--older", "1d"),
    ("job", "unfinished", "config.yaml"),
    ("config", "check", "config.yaml"),
    ("server", "start"),
    ("server", "status"),
    ("server", "stop", "config.yaml"),
]


def foreign(path: Path) -> None:
    """Give a path to another user; only root can, and it is root's then who looks."""
    os.chown(path, 4711, -1, follow_symlinks=False)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "-".join(words[:2]))
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_every_command_refuses_a_jobs_directory_that_others_can_write_to(sluice, project, words, mode) -> None:
    (project / "jobs").mkdir()
    (project / "jobs").chmod(mode)
    ran = sluice(*words)
    assert ran.code == 2, ran.err
    assert "error[jobs-dir-unsafe]" in ran.err
    assert sorted((project / "jobs").iterdir()) == []
    mends = next(line.removeprefix("hint: ") for line in ran.err.splitlines() if line.startswith("hint: chmod"))
    subprocess.run(shlex.split(mends), check=True, cwd=project)
    check_jobs_dir(project / "jobs")


@as_root
@pytest.mark.parametrize("linked", [False, True], ids=["directory", "link"])
def test_a_jobs_directory_of_another_user_is_refused(tmp_path: Path, linked: bool) -> None:
    path = tmp_path / "jobs"
    if linked:
        (tmp_path / "elsewhere").mkdir()
        path.symlink_to("elsewhere")
    else:
        path.mkdir()
    foreign(path)
    with pytest.raises(InputError, match="belongs to another user") as refused:
        check_jobs_dir(path)
    assert (refused.value.reference, refused.value.exit_code) == ("jobs-dir-unsafe", 2)


@as_root
def test_a_jobs_directory_of_root_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    check_jobs_dir(tmp_path / "jobs")


def test_a_link_to_a_jobs_directory_is_followed_and_its_target_checked(sluice, project) -> None:
    (project / "large-disk").mkdir(mode=0o700)
    (project / "jobs").symlink_to("large-disk")
    assert sluice("pipeline", "start", "config.yaml").code == 0
    assert list((project / "large-disk").iterdir())
    (project / "large-disk").chmod(0o702)
    assert "error[jobs-dir-unsafe]" in sluice("job", "list", "config.yaml").err
