"""A step that is killed with ``kill -9`` goes on where it was, and ends as an undisturbed one."""

from __future__ import annotations

import signal
import subprocess
from concurrent.futures import Future
from pathlib import Path

import pytest

from tasks.shared.errors import SluiceError
from tests.conftest import wait_until
from tests.peers.server import Reply, ScriptedServer, SeenRequest
from tests.peers.steps import CASES, StepPlace, start

pytestmark = pytest.mark.slow

MOMENTS = ("before the request", "after the answer", "before the rename", "after the rename")


def undisturbed(name: str, directory: Path) -> tuple[dict[str, bytes], int]:
    """Return what an undisturbed run makes, and how many of its requests move data."""
    place = StepPlace(name, directory).fill()
    with place.serve() as service:
        place.run(service.url)
        return place.made(service), sum(map(place.case.moves, service.seen))


def kill(name: str, place: StepPlace, service: ScriptedServer, moment: str) -> None:
    """Run the step in a process, and kill it."""
    started: Future[subprocess.Popen[str]] = Future()

    def killed(seen: SeenRequest) -> Reply | None:
        if not place.case.victim(seen):
            return None
        started.result(60).kill()
        return Reply(reset=True)

    def answered(seen: SeenRequest) -> None:
        if place.case.victim(seen):
            started.result(60).kill()

    if moment == "before the request":
        service.script = killed
    if moment == "after the answer":
        service.after = answered
    rename = moment if "rename" in moment else ""
    child = start(name, place.directory, service.url, rename, 2)
    started.set_result(child)
    _, err = child.communicate(timeout=120)
    assert child.returncode == -signal.SIGKILL, err
    wait_until(lambda: service.connected == 0)
    service.script, service.after = None, lambda _: None


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        (name, moment)
        for name, case in CASES.items()
        for moment in MOMENTS
        if (case.renames if "rename" in moment else name != "local_import")
    ],
)
def test_a_killed_step_ends_as_an_undisturbed_one(tmp_path: Path, name: str, moment: str) -> None:
    expected, requests = undisturbed(name, tmp_path / "undisturbed")
    place = StepPlace(name, tmp_path / "killed").fill()
    with place.serve() as service:
        kill(name, place, service, moment)
        left = {path: path.stat() for path in place.job.rglob("*.ndjson*") if path.name in _names(expected)}
        finished_bases = {path.name.removesuffix(".json") for path in place.job.rglob(".done/*/*.json")}
        before = len(service.seen)
        place.run(service.url)
        assert place.made(service) == expected
        moved = sum(map(place.case.moves, service.seen))
        submissions = sum("$extract-data" in seen.target for seen in service.seen)
    # Files under way may come again, also those that were read ahead.
    assert moved <= 2 * requests
    again = [f"{seen.target} {seen.body!r}" for seen in service.seen[before:] if place.case.moves(seen)]
    for base in finished_bases:
        assert [text for text in again if f"{base}-p" in text or f"{base}.ndjson" in text] == []
    assert submissions == (name == "extractor")
    finished = {path: (one.st_ino, one.st_mtime_ns) for path, one in left.items()}
    assert finished == {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in left}
    assert list(place.job.rglob("*.part")) == []


def _names(made: dict[str, bytes]) -> set[str]:
    return {Path(name).name for name in made}


def test_a_submission_whose_answer_is_lost_is_not_repeated(tmp_path: Path) -> None:
    place = StepPlace("extractor", tmp_path).fill()
    with place.serve() as service:
        service.script = lambda seen: Reply(reset=True) if "$extract-data" in seen.target else None
        with pytest.raises(SluiceError):
            place.run(service.url)
        service.script = None
        with pytest.raises(SluiceError):
            place.run(service.url)
        assert sum("$extract-data" in seen.target for seen in service.seen) == 1
