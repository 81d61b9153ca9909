"""The jobs directory is private to its user, and no link is followed below it (4-product.md §4)."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from flows.engine.server.start import EmbeddedServer
from flows.jobs_dir import check_jobs_dir
from tasks.shared.errors import InputError, StorageError
from tests.conftest import wait_until

COMMANDS = [
    ("pipeline", "start", "config.yaml"),
    ("pipeline", "plan", "config.yaml"),
    ("pipeline", "continue", "config.yaml", "latest", "--approve"),
    ("pipeline", "status", "config.yaml", "latest"),
    ("job", "list", "config.yaml"),
    ("job", "report", "config.yaml", "latest"),
    ("job", "delete", "config.yaml", "latest"),
    ("job", "prune", "config.yaml", "--older-than", "1d"),
    ("job", "unfinished", "config.yaml"),
    ("config", "check", "config.yaml"),
    ("server", "start", "config.yaml", "--port", "0"),
    ("server", "status", "--jobs-dir", "jobs"),
    ("server", "stop", "--jobs-dir", "jobs"),
]


def foreign(path: Path) -> None:
    """Give a path to another user; only root can, and it is root's then who looks."""
    os.chown(path, 4711, -1, follow_symlinks=False)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "-".join(words[:2]))
def test_every_command_refuses_a_jobs_directory_that_everybody_can_write_to(sluice, project, words) -> None:
    (project / "jobs").mkdir()
    (project / "jobs").chmod(0o777)
    ran = sluice(*words)
    assert ran.code == (1 if "unfinished" in words else 2), ran.err  # that one goes on with the next configuration
    assert "error[jobs-dir-unsafe]" in ran.err
    assert sorted((project / "jobs").iterdir()) == []
    mends = next(line.removeprefix("hint: ") for line in ran.err.splitlines() if line.startswith("hint: chmod"))
    subprocess.run(shlex.split(mends), check=True, cwd=project)
    assert not check_jobs_dir(project / "jobs")


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


def test_a_jobs_directory_of_root_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    owner = (tmp_path / "jobs").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        assert not check_jobs_dir(tmp_path / "jobs")
        return
    with pytest.raises(InputError):
        check_jobs_dir(tmp_path / "jobs")


def test_a_link_to_a_jobs_directory_is_followed_and_its_target_checked(sluice, project) -> None:
    (project / "large-disk").mkdir(mode=0o700)
    (project / "jobs").symlink_to("large-disk")
    assert sluice("pipeline", "start", "config.yaml").code == 0
    assert list((project / "large-disk").iterdir())
    (project / "large-disk").chmod(0o702)
    assert "error[jobs-dir-unsafe]" in sluice("job", "list", "config.yaml").err


def test_a_jobs_directory_that_the_group_can_write_to_is_a_warning(sluice, project) -> None:
    (project / "jobs").mkdir()
    (project / "jobs").chmod(0o770)
    for words in (("config", "check", "config.yaml"), ("pipeline", "start", "config.yaml")):
        ran = sluice(*words)
        assert ran.code == 0, ran.err
        assert ran.err.count("warning[jobs-dir-unsafe]") == 1
        assert f"hint: chmod g-w {project / 'jobs'}" in ran.err


@pytest.mark.parametrize("name", ["server.log", "server.lock", "clients.lock", "prefect.db", "storage"])
def test_no_server_starts_over_a_link_and_its_target_is_as_it_was(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    home = tmp_path / "jobs" / ".prefect"
    home.mkdir(parents=True)
    (home / name).symlink_to(victim)
    with pytest.raises(StorageError) as refused:
        EmbeddedServer(tmp_path / "jobs").begin()
    assert (refused.value.reference, refused.value.context) == ("link-not-followed", str(home / name))
    assert victim.read_bytes() == b"precious"


def test_a_server_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / ".prefect").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="symbolic link"):
        EmbeddedServer(tmp_path / "jobs").begin()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("job.log", False), ("send", True), (".results/x", False),
        *(
            pytest.param(name, name in {"report", "send/failed"}, marks=pytest.mark.slow)
            for name in (".lock", "import_wait/fixed.ndjson", "import/core.ndjson", "report", "send/failed")
        ),
    ],
)  # fmt: skip
def test_no_job_goes_on_over_a_link_and_its_target_is_as_it_was(sluice, project, name: str, folder: bool) -> None:
    job = sluice("pipeline", "start", "config.yaml").job
    target, link = project / "target", project / "jobs" / job / name
    if folder:
        target.mkdir()
    else:
        target.write_bytes(b"precious")
    link.unlink(missing_ok=True)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(target)
    ran = sluice("pipeline", "continue", "config.yaml", job, "--approve")
    assert ran.code == 1, ran.err
    assert "error[link-not-followed]" in ran.err
    assert str(link) in ran.err
    assert "hint: " in ran.err
    assert list(target.iterdir()) == [] if folder else target.read_bytes() == b"precious"
    link.unlink()
    assert sluice("pipeline", "continue", "config.yaml", job, "--approve").code == 0


def test_what_emacs_puts_beside_a_file_that_is_edited_is_no_such_link(sluice, project) -> None:
    job = sluice("pipeline", "start", "config.yaml").job
    (project / "jobs" / job / "import_wait" / ".#fixed.ndjson").symlink_to("ann@hospital.4711:1700000000")
    assert sluice("pipeline", "continue", "config.yaml", job, "--approve").code == 0


def test_a_deleted_job_takes_links_with_it_and_nothing_behind_them(sluice, project) -> None:
    job = sluice("pipeline", "start", "config.yaml").job
    (project / "target").mkdir()
    (project / "target" / "file").write_bytes(b"precious")
    (project / "jobs" / job / "import" / "folder").symlink_to(project / "target")
    (project / "jobs" / job / "send").symlink_to(project / "target")
    assert sluice("job", "delete", "config.yaml", job).code == 0
    assert (project / "target" / "file").read_bytes() == b"precious"
    assert not (project / "jobs" / job).exists()


def test_a_job_directory_that_is_a_link_is_neither_run_nor_emptied(sluice, project) -> None:
    job = sluice("pipeline", "start", "config.yaml").job
    place = project / "jobs" / job
    place.rename(project / "moved")
    place.symlink_to(project / "moved")
    before = sorted((project / "moved").rglob("*"))
    for words in (("pipeline", "continue", "config.yaml", job, "--approve"), ("job", "delete", "config.yaml", job)):
        ran = sluice(*words)
        assert ran.code == 1, ran.err
        assert "error[link-not-followed]" in ran.err
    assert sorted((project / "moved").rglob("*")) == before
    unrecorded = project / "jobs" / str(uuid4())
    unrecorded.symlink_to(project / "moved")
    sluice("job", "prune", "config.yaml", "--older-than", "0s")
    assert sorted((project / "moved").rglob("*")) == before


AUDIT = """
import os, stat, sys

PLACE, FOUND = os.environ["OPENED_BELOW"], os.environ["OPENED_TO"]


def hook(event, given):
    if event != "open" or not isinstance(given[0], (str, bytes)) or given[2] & os.O_NOFOLLOW:
        return
    path = os.path.join(os.getcwd(), os.fsdecode(given[0]))
    if PLACE not in path or os.path.isdir(path):
        return
    with open(FOUND, "a") as file:
        file.write(f"{path}\\n")


sys.addaudithook(hook)
"""


@pytest.mark.e2e
def test_a_whole_pipeline_follows_no_link_below_the_jobs_directory(sluice_alone, tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(AUDIT)
    found, scratch = tmp_path / "opened", tmp_path / "scratch"
    scratch.mkdir(mode=0o700)
    sluice_alone.environment |= {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "hook"), sluice_alone.environment["PYTHONPATH"]]),
        "OPENED_BELOW": f"{scratch}/", "OPENED_TO": str(found), "TMPDIR": str(scratch),
    }  # fmt: skip
    ran = sluice_alone("demo", "--keep")
    assert ran.code == 0, ran.err
    wait_until(lambda: not list(scratch.rglob("server.json")))
    opened = found.read_text().splitlines() if found.exists() else []
    excepted = ("/crtdl.json", "/.prefect/profiles.toml")  # also given by a person; Prefect's own
    ours = [line for line in opened if "/jobs/" in line and not line.endswith(excepted)]
    assert not ours, "\n".join(ours)
