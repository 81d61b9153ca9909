"""An import that is divided among child runs gives what it gives undivided (6-scale-out.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.http_import.step import STEP
from tasks.shared.errors import DataError, ServiceError
from tasks.shared.files.intake import FileLedger
from tasks.shared.import_directory import ImportDirectory
from tasks.shared.report import StepReport
from tests.peers.server import Loopback, Reply, SeenRequest, loopback
from tests.peers.shards import KilledError, digests, kill_at_call, run_divided
from tests.tasks.http_import.test_importer import PATIENT, context

NAMES = ("core.ndjson", "a.ndjson", "b.ndjson", "b.ndjson", "c")


def urls(server: Loopback) -> list[str]:
    return [f"{server.url}/{number}/{name}?sig=CANARY" for number, name in enumerate(NAMES)]


def answer(seen: SeenRequest) -> Reply:
    number = int(seen.target.split("/")[1])
    return Reply(200, PATIENT.replace(b"p1", b"p%d" % number) * (number + 1))


def figures(report: StepReport) -> dict[str, Any]:
    return report.result() | {"content": None}


def undivided(directory: Path, server: Loopback) -> tuple[dict[str, str], dict[str, Any], int]:
    ctx = context(directory, *urls(server))
    report = STEP.run(ctx)
    requests = len(server.seen)
    server.seen.clear()
    return digests(ctx.job_dir / "import"), figures(report), requests


@pytest.mark.parametrize(("shards", "order"), [(2, (1, 0)), (3, (2, 0, 1, 2)), (9, None)])
def test_files_report_and_requests_are_those_of_an_undivided_run(
    tmp_path: Path, shards: int, order: tuple[int, ...] | None
) -> None:
    with loopback(answer) as server:
        expected = undivided(tmp_path / "undivided", server)
        ctx = context(tmp_path, *urls(server))
        report = run_divided(STEP, ctx, shards, order=order)
        assert (digests(ctx.job_dir / "import"), figures(report), len(server.seen)) == expected
    facts = FileLedger(ctx.job_dir / ".results" / "0-files.ndjson")
    assert all(facts.get(path) is not None for path in (ctx.job_dir / "import").iterdir())
    kept = b"".join(path.read_bytes() for path in (ctx.job_dir / ".results").rglob("*") if path.is_file())
    assert b"CANARY" not in kept


@pytest.mark.parametrize(
    ("where", "name", "call"),
    [
        (ImportDirectory, "record", 2),
        (ImportDirectory, "add", 3),
        (FileLedger, "adopt", 1),
        (ImportDirectory, "result", 2),
    ],
)
def test_killed_anywhere_no_finished_file_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: type, name: str, call: int
) -> None:
    with loopback(answer) as server:
        files, report, requests = undivided(tmp_path / "undivided", server)
        ctx = context(tmp_path, *urls(server))
        kill_at_call(monkeypatch, where, name, call)
        with pytest.raises(KilledError):
            run_divided(STEP, ctx, 2)
        again = run_divided(STEP, context(tmp_path, *urls(server)), 2)
        assert len(server.seen) == requests + (name == "record")
    assert digests(ctx.job_dir / "import") == files
    assert figures(again) == report


def test_a_shard_leaves_the_unfinished_files_of_others_alone(tmp_path: Path) -> None:
    left = tmp_path / "job" / "import"
    left.mkdir(parents=True)
    with loopback(answer) as server:
        ctx = context(tmp_path, *urls(server))

        def check_parts(index: int) -> None:
            if index == 0:
                (left / "b.ndjson.zst.part").touch()
                (left / "core.ndjson.zst.part").touch()
            elif index == 1:
                assert {path.name for path in left.glob("*.part")} == {"core.ndjson.zst.part"}

        run_divided(STEP, ctx, 2, between=check_parts)
    assert not [*left.glob("*.part")]


def test_the_pages_of_a_search_may_be_in_files_of_several_shards(tmp_path: Path) -> None:
    def page(number: int, more: bool) -> bytes:
        entry = {"resource": {"resourceType": "Patient", "id": f"p{number}"}}
        link = [{"relation": "next", "url": "https://fhir.example/next"}] if more else []
        found = {"resourceType": "Bundle", "type": "searchset", "total": 2, "link": link, "entry": [entry]}
        return json.dumps(found).encode() + b"\n"

    pages = {"a": page(1, more=True), "b": page(2, more=False)}
    with loopback(lambda seen: Reply(200, pages[seen.target[-1]])) as server:
        names = [f"{server.url}/{name}" for name in pages]
        assert run_divided(STEP, context(tmp_path / "whole", *names), 2).files == 2
        pages["b"] = PATIENT
        ctx = context(tmp_path / "part", *names)
        with pytest.raises(DataError) as caught:
            run_divided(STEP, ctx, 2)
    assert caught.value.reference == "source-incomplete"
    assert [path.name for path in (ctx.job_dir / "import").iterdir()] == ["b.ndjson.zst"]


def test_the_error_of_a_shard_leaves_the_files_of_the_others(tmp_path: Path) -> None:
    with loopback(lambda seen: Reply(404) if "/4/" in seen.target else answer(seen)) as server:
        ctx = context(tmp_path, *urls(server))
        with pytest.raises(ServiceError):
            run_divided(STEP, ctx, 5)
    assert [path.name for path in sorted((ctx.job_dir / "import").iterdir())] == [
        "a.ndjson.zst", "b-2.ndjson.zst", "b.ndjson.zst",
    ]  # fmt: skip
