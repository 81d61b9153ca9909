"""``file_work.py``: what is finished is never done again, nothing is half written; killed between any two lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.shared.file_work import Done, FileWork, digest, identities, read_records
from tasks.shared.files.part_file import PartFile

INPUTS = {"b1": "one", "core": "two", "b2": "three"}


def work(job: Path, inputs: dict[str, str] = INPUTS, terms: str = "t") -> tuple[FileWork, list[str]]:
    files = FileWork(job, 2, job / "out", terms=terms)
    return files, files.begin(inputs)


def finish(files: FileWork, job: Path, base: str, text: bytes = b"data\n") -> Done:
    with PartFile(job / "out" / f"{base}.ndjson") as part:
        part.write(text)
        return files.finish(Done(file=base, identity=INPUTS[base], counts={"lines": 1}), part)


def outputs(job: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((job / "out").iterdir())}


def test_core_is_first_and_finished_files_are_not_done_again(tmp_path: Path) -> None:
    files, todo = work(tmp_path)
    assert todo == ["core", "b1", "b2"]
    done = finish(files, tmp_path, "core")
    assert (done.output, done.size, done.terms, len(done.sha256)) == ("core.ndjson", 5, "t", 64)
    files, todo = work(tmp_path)
    assert todo == ["b1", "b2"]
    assert [one.file for one in files.done()] == ["core"]
    assert oct((tmp_path / ".done/2/core.json").stat().st_mode)[-3:] == "600"


def test_core_is_first_in_any_case(tmp_path: Path) -> None:
    _, todo = work(tmp_path, {"Aaa": "one", "CORE": "two"})
    assert todo == ["CORE", "Aaa"]


@pytest.mark.parametrize("change", ["input", "terms", "output gone", "output cut", "part of another", "record torn"])
def test_what_no_longer_matches_is_done_again(tmp_path: Path, change: str) -> None:
    files, _ = work(tmp_path)
    for base in INPUTS:
        finish(files, tmp_path, base)
    inputs, terms = dict(INPUTS), "t"
    match change:
        case "input":
            inputs["b1"] = "other"
        case "terms":
            terms = "u"
        case "output gone":
            (tmp_path / "out/b1.ndjson").unlink()
        case "output cut":
            (tmp_path / "out/b1.ndjson").write_bytes(b"da")
        case "part of another":
            (tmp_path / "out/b1.ndjson").unlink()
            (tmp_path / "out/b1.ndjson.part").write_bytes(b"DATA\n")
        case "record torn":
            (tmp_path / ".done/2/b1.json").write_bytes(b'{"file":"b1"')
    files, todo = work(tmp_path, inputs, terms)
    assert todo == (["core", "b1", "b2"] if change == "terms" else ["b1"])
    assert files.again == (todo if change in {"input", "terms"} else [])
    assert not {f"{base}.ndjson" for base in todo} & outputs(tmp_path).keys()


def test_orphans_go_in_every_form_and_a_subset_touches_nothing_else(tmp_path: Path) -> None:
    files, _ = work(tmp_path)
    for base in INPUTS:
        finish(files, tmp_path, base)
    (tmp_path / "out/gone.ndjson.zst").write_bytes(b"x")
    (tmp_path / "out/b1.ndjson.zst.part").write_bytes(b"x")
    part = FileWork(tmp_path, 2, tmp_path / "out", terms="t")
    assert part.begin({"b2": "changed", **{k: v for k, v in INPUTS.items() if k != "b2"}}, only=["b2"]) == ["b2"]
    assert "gone.ndjson.zst" in outputs(tmp_path)
    _, todo = work(tmp_path, {"b1": "one"})
    assert not todo
    assert set(outputs(tmp_path)) == {"b1.ndjson", "b1.ndjson.zst.part"}
    assert [done.file for done in read_records(tmp_path / ".done/2")] == ["b1"]


def test_a_later_step_knows_a_file_by_the_record_of_the_step_that_wrote_it(tmp_path: Path) -> None:
    files, _ = work(tmp_path)
    done = finish(files, tmp_path, "b1")
    corrected = tmp_path / "out/b2.ndjson"
    corrected.write_bytes(b"by hand\n")
    found = identities([tmp_path / "out/b1.ndjson", corrected], tmp_path / ".done/2")
    facts = corrected.stat()
    assert found == {"b1": done.sha256, "b2": digest(str(corrected), str(facts.st_size), str(facts.st_mtime_ns))}


# In a process of its own: each run of the child is killed one line of the two modules later than the one before.
CAMPAIGN = """
import json, os, signal, sys
from pathlib import Path
from tasks.shared import file_work
from tasks.shared.files import part_file
from tests.tasks.shared.test_file_work import INPUTS, finish, work

WATCHED = {file_work.__file__, part_file.__file__}

def run(job, log, at):
    seen = 0
    def trace(frame, event, arg):
        nonlocal seen
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    files, todo = work(job)
    for base in todo:
        with open(log, "a") as f:
            f.write(base + "\\n")
        finish(files, job, base, base.encode() * 1000)
    sys.settrace(None)
    os._exit(0)

def child(job, log, at):
    if (pid := os.fork()) == 0:
        run(job, log, at)
    return os.waitpid(pid, 0)[1]

root, results, at = Path(sys.argv[1]), [], 0
while True:
    at += 1
    job, log = root / str(at), root / f"{at}.log"
    job.mkdir()
    killed = child(job, log, at)
    recorded = sorted(path.stem for path in (job / ".done/2").glob("*.json")) if (job / ".done/2").is_dir() else []
    before = log.read_text().split() if log.exists() else []
    assert child(job, log, 0) == 0
    again = log.read_text().split()[len(before):]
    left = {path.name: path.read_bytes().decode() for path in sorted((job / "out").iterdir())}
    results.append((killed, recorded, again, left))
    if not killed:
        break
json.dump(results, sys.stdout)
"""


def test_killed_between_any_two_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CAMPAIGN, str(tmp_path)]
    said = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    )
    results = json.loads(said.stdout)
    assert len(results) > 150
    assert {killed for killed, *_ in results[:-1]} == {signal.SIGKILL}
    whole = {f"{base}.ndjson": base * 1000 for base in sorted(INPUTS)}
    for _, recorded, again, left in results:
        assert left == whole
        assert not set(recorded) & set(again)  # a file with a record is not done again …
        assert set(recorded) | set(again) == set(INPUTS)  # … and every other one is
