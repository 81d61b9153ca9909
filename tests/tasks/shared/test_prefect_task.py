"""Parts that all steps share: the synthetic resource before the first data, the inventory of written files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from config import PipelineConfig
from tasks.shared.errors import DataError
from tasks.shared.file_work import Done, records_of
from tasks.shared.files.inventory import kept_at, load
from tasks.shared.files.part_file import write_whole
from tasks.shared.prefect_task import leave_inventory, proved
from tasks.shared.report import StepReport
from tasks.shared.service import Found, ProbeWarning, Service
from tasks.shared.step import StepContext
from tests.peers import job

DONE = StepReport(output="import")


@pytest.fixture
def context(tmp_path: Path) -> StepContext:
    (tmp_path / "import").mkdir()
    (tmp_path / "import" / "a.ndjson").write_bytes(b"{}\n")
    return job.context(tmp_path, "local_import")


def test_it_is_kept_under_its_digest_and_the_same_when_made_again(context: StepContext) -> None:
    digest = leave_inventory(context, DONE)
    assert digest is not None
    kept = load(kept_at(context.job_dir, 1), digest)
    assert kept is not None
    assert [(entry.name, entry.sha256) for entry in kept.entries] == [
        ("import/a.ndjson", hashlib.sha256(b"{}\n").hexdigest())
    ]
    assert leave_inventory(context, DONE) == digest  # killed before the result: made once more


def test_a_step_without_data_of_its_own_leaves_none(context: StepContext) -> None:
    assert leave_inventory(context, StepReport()) is None
    assert not kept_at(context.job_dir, 1).exists()


def test_the_inventory_of_an_import_has_the_hash_of_the_bytes_written(context: StepContext) -> None:
    record = Done(file="a", identity="i", output="a.ndjson", size=3, sha256="of what was written")
    write_whole(records_of(context.job_dir, 1) / "a.json", msgspec.json.encode(record))
    digest = leave_inventory(context, DONE)
    kept = load(kept_at(context.job_dir, 1), str(digest))
    assert kept is not None
    assert kept.entries[0].sha256 == "of what was written"


class ProbedService:
    """A probe with scripted findings."""

    def __init__(self, *found: Found, proves: bool = True) -> None:
        self.found = found
        self.proves = proves
        self.asked: list[dict[str, Any]] = []

    def find_problems(self, service: Service, config: PipelineConfig, **more: Any) -> Iterator[Found]:
        self.asked.append({"service": service.key, **more})
        return iter(self.found)


def test_a_service_is_asked_before_the_first_data_until_the_step_is_to_stop(context: StepContext) -> None:
    probe = ProbedService(ProbeWarning("nobody knows"))
    assert list(proved([Service("send", "http://x", probe=probe)], context)) == ["nobody knows"]
    (asked,) = probe.asked
    assert asked["stop"] == context.stop


def test_a_wrong_service_ends_the_step_before_the_next_one_is_asked(context: StepContext) -> None:
    wrong, next_one = ProbedService(DataError("wrong-service", "another one")), ProbedService()
    with pytest.raises(DataError):
        list(proved([Service("send", "http://x", probe=wrong), Service("send", "http://y", probe=next_one)], context))
    assert next_one.asked == []


def test_what_proves_nothing_is_not_asked_by_a_step(context: StepContext) -> None:
    probe = ProbedService(DataError("x", "y"), proves=False)
    assert list(proved([Service("extractor", "http://x", probe=probe), Service("extractor")], context)) == []
    assert probe.asked == []
