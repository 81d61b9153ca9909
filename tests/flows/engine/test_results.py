""".results/ is read as JSON and as nothing else (4-product.md §4): a pickle never runs, it is a damaged result."""

from __future__ import annotations

import base64
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from flows.engine.results import DamagedResultError, read_result, write_result
from tests.conftest import Commands
from tests.peers.project import Fhir

JOB = "0d6a1c35-2a83-4a36-9f0b-3c6a2d1f6b11"


class Opens:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def bare(marker: Path) -> bytes:
    return base64.encodebytes(pickle.dumps(Opens(marker)))


def wrapped(marker: Path, **serializer: Any) -> bytes:
    """As Prefect writes a result whose serializer is another one; with its own word on how to read it."""
    kind: dict[str, Any] = serializer or {"type": "pickle", "picklelib": "pickle"}
    return json.dumps({"metadata": {"serializer": kind}, "result": bare(marker).decode()}).encode()


def compressed(marker: Path) -> bytes:
    import lzma

    inside = {"type": "pickle", "picklelib": "pickle"}
    kind = {"type": "compressed", "compressionlib": "lzma", "serializer": inside}
    result = base64.encodebytes(lzma.compress(bare(marker))).decode()
    return json.dumps({"metadata": {"serializer": kind}, "result": result}).encode()


def calling(marker: Path) -> bytes:
    """JSON by name, but read by another library."""
    kind = {"type": "json", "jsonlib": "pickle", "object_decoder": None}
    return json.dumps({"metadata": {"serializer": kind}, "result": str(marker)}).encode()


SERIALIZER = {
    "type": "json", "jsonlib": "json", "object_encoder": "prefect.serializers.prefect_json_object_encoder",
    "object_decoder": "prefect.serializers.prefect_json_object_decoder", "dumps_kwargs": {}, "loads_kwargs": {},
}  # fmt: skip
COUNTS = {"files": 1, "lines_out": 3, "output": "import", "warnings": [], "details": {}, "statistics": {"seconds": 0.1}}


def record(
    *, result: object = None, serializer: dict[str, Any] | None = None, key: str | None = None, **metadata: object
) -> bytes:
    """Return a record as Prefect writes it."""
    described = {
        "storage_key": key or f"/srv/jobs/{JOB}/.results/1-local_import.json", "expiration": None,
        "serializer": SERIALIZER | (serializer or {}), "prefect_version": "3.8.8", "storage_block_id": None,
    }  # fmt: skip
    content = json.dumps(COUNTS if result is None else result)
    return json.dumps({"metadata": described | metadata, "result": content}).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / JOB / ".results" / "1-local_import.json"
    made.parent.mkdir(parents=True, mode=0o700)
    return made


def put(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


def test_a_result_is_read_as_json_only_and_after_the_jobs_directory_moved(path: Path) -> None:
    put(path, record())
    found = json.loads(read_result(path) or b"")
    assert json.loads(found["result"]) == COUNTS
    assert found["metadata"]["serializer"]["type"] == "json"
    assert found["metadata"]["serializer"]["object_decoder"] is None


def test_a_missing_result_is_none(path: Path) -> None:
    assert read_result(path) is None
    assert read_result(path.parent / "more" / "1-local_import.json") is None


DAMAGED = {
    "nothing": b"",
    "cut": record()[:-20],
    "no record": b'{"files": 1}',
    "old form": json.dumps({"data": "gASV", "serializer": {"type": "pickle"}}).encode(),
    "pickle": record(serializer={"type": "pickle"}),
    "compressed pickle": record(serializer={"type": "compressed/pickle"}),
    "compressed json": record(serializer={"type": "compressed/json"}),
    "another JSON library": record(serializer={"jsonlib": "cloudpickle"}),
    "another decoder": record(serializer={"object_decoder": "os.system"}),
    "arguments": record(serializer={"loads_kwargs": {"cls": "x"}}),
    "a class": record(result=COUNTS | {"details": {"a": [{"__class__": "pathlib.Path", "data": "/"}]}}),
    "an exception": record(result={"__exc_type__": "SystemExit", "message": "0"}),
    "no object": record(result=[1]),
    "wrong types": record(result=COUNTS | {"files": "many"}),
    "an absolute output": record(result=COUNTS | {"output": "/etc"}),
    "an output outside": record(result=COUNTS | {"output": "../../other"}),
    "of another step": record(key=f"/srv/jobs/{JOB}/.results/2-wait.json"),
    "of another job": record(key="/srv/jobs/another/.results/1-local_import.json"),
    "kept in a block": record(storage_block_id=JOB),
    "too old": record(expiration="2020-01-01T00:00:00Z"),
    "deep": b"[" * 200_000,
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_what_is_not_exactly_what_a_step_left_is_damaged(path: Path, content: bytes) -> None:
    put(path, content)
    with pytest.raises(DamagedResultError):
        read_result(path)


def test_a_result_is_written_whole_0600(path: Path) -> None:
    write_result(path, record())
    assert path.stat().st_mode & 0o7777 == 0o600
    assert read_result(path) is not None


def failing(project: Path, fhir: Fhir) -> None:
    """local_import → send, and the server refuses everything."""
    config = project / "config.yaml"
    config.write_text(config.read_text().replace("[local_import, wait, send]", "[local_import, send]"))
    fhir.faults({"action": "status", "status": 403, "path": "/fhir*", "method": "POST", "times": None})


@pytest.mark.slow
def test_a_pickle_never_runs_and_the_step_is_done_again(sluice: Commands, project: Path, fhir: Fhir) -> None:
    failing(project, fhir)
    job = sluice("pipeline", "start", "config.yaml").job
    directory = project / "jobs" / job
    results, markers = directory / ".results", [project / f"marker-{number}" for number in range(4)]
    assert (results / "1-local_import.json").exists()

    put(results / "1-local_import.json", wrapped(markers[0]))
    put(results / "2-send.json", bare(markers[1]))
    fhir.faults()
    ran = sluice("pipeline", "continue", "config.yaml", job)
    assert [marker.name for marker in markers if marker.exists()] == []
    assert ran.code == 0, ran.err
    assert fhir.total() == 19

    put(results / "1-local_import.json", compressed(markers[2]))
    put(results / "2-send.json", calling(markers[3]))
    ran = sluice("pipeline", "continue", "config.yaml", job, "--from", "send", "--yes")
    assert ran.code == 0, ran.err
    assert [marker.name for marker in markers if marker.exists()] == []
    log = (directory / "job.log").read_text()
    assert log.count("the stored result of step 1 local_import is damaged") == 2
    assert not any(b'"pickle"' in file.read_bytes() for file in results.glob("*.json"))
