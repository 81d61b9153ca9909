"""A step that is divided among child runs gives what it gives undivided (6-scale-out.md)."""

from __future__ import annotations

import functools
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.pseudonymizer.agreement import MixedUpError
from tasks.pseudonymizer.answer_check import outline_of
from tasks.pseudonymizer.identity import IdentityMap
from tasks.pseudonymizer.outputs import Outputs
from tasks.pseudonymizer.residual_identifiers import Residuals
from tasks.shared.errors import DataError, ServiceError
from tasks.shared.files.ledger import Ledger
from tests.peers.pseudonymization import FakePseudonymizer, PseudonymizerJob, bundle, observation, patient, pseudonyms
from tests.peers.server import Reply
from tests.peers.shards import KilledError, digests, kill_at_call

NAMES = ("a", "b", "c", "d")


def filled(directory: Path) -> PseudonymizerJob:
    """Return a job with a core file and four files; three patients of each keep a number, and two files share them."""
    job = PseudonymizerJob(directory)
    job.write("core.ndjson", *[{"resourceType": "Practitioner", "id": f"d{n}", "text": "core"} for n in range(5)])
    for at, name in enumerate(NAMES):
        people = [f"p{at // 2}-{n}" for n in range(3)]
        job.write(f"{name}.ndjson", *[
            bundle(f"{name}{n}", patient(who, identifier=[{"value": f"N-{who}"}]),
                   observation(f"{name}-{n}", who, performer=[{"reference": f"Practitioner/d{n}"}]))
            for n, who in enumerate(people)
        ])  # fmt: skip
    return job


def run(job: PseudonymizerJob, url: str, **more: Any) -> dict[str, Any]:
    return job.run(url, residual_identifiers="warn", **more).result() | {"content": None}


def undivided(directory: Path) -> tuple[dict[str, str], dict[str, Any]]:
    job = filled(directory)
    with FakePseudonymizer(pseudonyms) as service:
        report = run(job, service.url)
    return digests(job.output), report


def left_of(job: PseudonymizerJob) -> list[str]:
    """Return the files of the step's own that are left."""
    places = (job.directory / ".results").rglob("*"), (job.directory / "pseudonymizer").rglob("*")
    return sorted({path.name for place in places for path in place if path.is_file()})


def test_whose_a_value_is_has_one_hash_in_all_processes() -> None:
    sent = outline_of(b'{"resourceType":"Patient","id":"p","photo":[{"url":"u"}]}', sent=True)
    assert Residuals().owners(sent, sent) == {"residual Patient.photo.url": {7587635811456339535}}


@pytest.mark.parametrize(("shards", "order"), [(2, (1, 0)), (3, (0, 2, 1, 2)), (8, None)])
def test_outputs_report_and_requests_are_those_of_an_undivided_run(
    tmp_path: Path, shards: int, order: tuple[int, ...] | None
) -> None:
    expected, report = undivided(tmp_path / "undivided")
    assert report["identifying"] == {"Patient.identifier.value": "5 patients"}  # six, of twelve findings
    job = filled(tmp_path / "job")
    with FakePseudonymizer(pseudonyms) as service:
        assert run(job, service.url, shards=shards, order=order) == report
        assert [b'"core"' in request.resource for request in service.requests] == [True] * 5 + [False] * 12
        run(job, service.url, shards=shards)  # killed before its result was stored
        assert len(service.requests) == 17
    assert digests(job.output) == expected
    assert left_of(job) == ["ledger.ndjson", "shards.json"]


@pytest.mark.parametrize(
    ("where", "name", "call", "more"),
    [
        (Outputs, "finish", 0, 5), (Outputs, "finish", 1, 7), (Outputs, "finish", 3, 7), (Ledger, "adopt", 0, 0),
        (Ledger, "adopt", 2, 0), (IdentityMap, "contradicts", 4, 0),
    ],
)  # fmt: skip
def test_killed_anywhere_only_what_was_under_way_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: type, name: str, call: int, more: int
) -> None:
    expected, report = undivided(tmp_path / "undivided")
    job = filled(tmp_path / "job")
    with FakePseudonymizer(pseudonyms) as service:
        kill_at_call(monkeypatch, where, name, call)
        with pytest.raises(KilledError):
            run(job, service.url, shards=3)
        found = run(job, service.url, shards=3)
        assert 17 <= len(service.requests) <= 17 + more
    found["details"]["requests"] = 17
    assert found == report
    assert digests(job.output) == expected
    assert left_of(job) == ["ledger.ndjson", "shards.json"]


def another_id_for(name: str) -> Callable[[bytes], bytes]:
    """Return a service that gives a practitioner who is not in the data another id for a file."""

    def transform(resource: bytes) -> bytes:
        return pseudonyms(
            resource.replace(b"Practitioner/d9", b"Practitioner/x9") if name.encode() in resource else resource
        )

    return transform


def test_answers_of_two_shards_that_contradict_each_other_make_all_files_again(tmp_path: Path) -> None:
    job = PseudonymizerJob(tmp_path)
    job.write("core.ndjson", {"resourceType": "Organization", "id": "o"})
    for name in NAMES:
        told = observation(f"o{name}", "p", performer=[{"reference": "Practitioner/d9"}])
        job.write(f"{name}.ndjson", told)
    with FakePseudonymizer(another_id_for('"oc"')) as service, pytest.raises(MixedUpError, match="several new ids"):
        run(job, service.url, shards=3)
    with FakePseudonymizer(pseudonyms) as service:
        report = run(job, service.url, shards=3)
        assert len(service.requests) == 5
    assert any("5 files were pseudonymized again" in warning for warning in report["warnings"])
    references = {re.search(rb"Practitioner/([^\"]+)", job.lines(f"{name}.ndjson")[0])[1] for name in NAMES}  # type: ignore[index]
    assert len(references) == 1


def test_an_answer_that_contradicts_the_core_file_makes_all_files_again(tmp_path: Path) -> None:
    job = filled(tmp_path)
    keys = [b"one"] * 5 + [b"another"] * 20

    def transform(resource: bytes) -> bytes:
        return pseudonyms(resource, keys.pop(0))

    with FakePseudonymizer(transform) as service, pytest.raises(MixedUpError):
        run(job, service.url, shards=2, max_concurrent_requests=1)
    with FakePseudonymizer(functools.partial(pseudonyms, key=b"another")) as service:
        run(job, service.url, shards=2)
        assert len(service.requests) == 17
    assert left_of(job) == ["ledger.ndjson", "shards.json"]


def test_a_name_clash_of_two_shards_is_refused_before_a_request(tmp_path: Path) -> None:
    job = filled(tmp_path)
    job.put("a.ndjson.zst", b"")
    with FakePseudonymizer(pseudonyms) as service, pytest.raises(DataError) as caught:
        run(job, service.url, shards=5)
    assert caught.value.reference == "pseudonymizer-name-clash"
    assert not service.requests


def test_what_has_no_input_is_removed_when_all_shards_have_ended(tmp_path: Path) -> None:
    job = filled(tmp_path)
    job.output.mkdir()
    (job.output / "old.ndjson").write_bytes(b"{}\n")
    with FakePseudonymizer(pseudonyms) as service:
        report = run(job, service.url, shards=2)
    assert {path.name for path in job.output.iterdir()} == {f"{name}.ndjson" for name in ("core", *NAMES)}
    assert any("1 files of an earlier run were removed" in warning for warning in report["warnings"])


def test_the_answer_that_a_shard_refused_is_where_its_error_says(tmp_path: Path) -> None:
    """The answers of other shards stay there, too."""
    job = filled(tmp_path)
    kept = tmp_path / "pseudonymizer" / "failed"
    with FakePseudonymizer(pseudonyms, lambda number, _: Reply(400, b"about it") if number == 5 else None) as service:
        with pytest.raises(ServiceError) as caught:
            run(job, service.url, shards=2, order=(1, 0))
        assert "pseudonymizer/failed/1-0001.txt" in str(caught.value.hint)
        service.script = lambda _, request: Reply(400, b"again") if b'"a0"' in request.resource else None
        with pytest.raises(ServiceError):
            run(job, service.url, shards=2, order=(0, 1))
    assert (kept / "1-0001.txt").read_bytes() == b"about it"
    assert {path.name for path in kept.glob("*.txt")} == {"0-0001.txt", "1-0001.txt"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept.iterdir()} == {0o600}
