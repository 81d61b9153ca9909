"""An interrupted step continues where it stopped, also inside a large file (4-product.md §4 "Continue")."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from tasks.pseudonymizer.pseudonymization import PseudonymizerBounds
from tasks.shared.errors import ServiceError, TransientError
from tests.peers.pseudonymization import RULES, PseudonymizerJob, patient, pseudonyms, serving
from tests.peers.server import Reply
from tests.tasks.test_kills import fill_pseudonymizer, output


@pytest.mark.slow
def test_a_large_file_that_was_stopped_at_80_percent_does_not_start_over(tmp_path: Path) -> None:
    job = PseudonymizerJob(tmp_path)
    job.write("a.ndjson", *[patient(f"p{n}", text="x" * 1000) for n in range(400)])
    with serving(pseudonyms) as service:
        for form in (True, False):
            service.script = lambda number, _: Reply(400) if number >= 320 else None
            with pytest.raises(ServiceError):
                job.run(service.url, compression=form, bounds=PseudonymizerBounds(cut_every=20_000))
            service.requests.clear()
            service.script = None
            result = job.run(service.url, compression=form, bounds=PseudonymizerBounds(cut_every=20_000))
            assert len(service.requests) <= 80 + 20 + 16  # what was left, since the last cut, in the window
            assert (result.resources_in, result.resources_out, result.lines_in) == (400, 400, 400)
            assert result.bytes_in == (job.input / "a.ndjson").stat().st_size
            name = "a.ndjson.zst" if form else "a.ndjson"
            assert len(job.lines(name)) == 400
            (job.output / name).unlink()
            service.requests.clear()


def test_a_second_run_over_a_finished_step_asks_nothing_and_reports_the_same(tmp_path: Path) -> None:
    job = PseudonymizerJob(tmp_path)
    fill_pseudonymizer(job, 20)
    with serving(pseudonyms) as service:
        first = job.run(service.url, rules=RULES)
        before = output(job)
        service.requests.clear()
        second = job.run(service.url, rules=RULES)
        assert service.requests == []
    assert output(job) == before
    assert second.result() | {"details": None} == first.result() | {"details": None}


def test_finished_files_stay_when_another_one_fails(tmp_path: Path) -> None:
    job = PseudonymizerJob(tmp_path)
    job.write("core.ndjson", patient("core"))
    job.write("a.ndjson", patient("a"))
    job.write("b.ndjson", patient("b"))
    with serving(pseudonyms, lambda number, _: Reply(503) if number >= 2 else None) as service:
        with pytest.raises(TransientError):
            job.run(service.url, max_concurrent_requests=1)
        service.requests.clear()
        service.script = None
        job.run(service.url, max_concurrent_requests=1)
    assert [json.loads(request.resource)["id"] for request in service.requests] == ["b"]


def test_a_kill_between_the_last_entry_of_the_ledger_and_the_rename_costs_nothing(tmp_path: Path) -> None:
    job = PseudonymizerJob(tmp_path)
    job.write("a.ndjson", patient("a"))
    with serving(pseudonyms) as service:
        job.run(service.url)
        final = job.output / "a.ndjson"
        content = final.read_bytes()
        final.rename(final.with_name("a.ndjson.part"))
        service.requests.clear()
        job.run(service.url)
        assert service.requests == []
    assert final.read_bytes() == content


@pytest.mark.slow
@pytest.mark.parametrize("change", ["rules", "no rules", "input", "output", "ledger"])
@pytest.mark.parametrize("form", [True, False])
def test_what_was_begun_or_done_under_other_terms_is_made_again_with_a_warning(
    tmp_path: Path, change: str, form: bool
) -> None:
    job = PseudonymizerJob(tmp_path)
    job.write("a.ndjson", *[patient(f"a{n}") for n in range(5)])
    job.write("b.ndjson", *[patient(f"b{n}") for n in range(20)])
    bounds = PseudonymizerBounds(cut_every=100)

    def other(resource: bytes) -> bytes:
        return pseudonyms(resource).replace(b'"id":"', b'"id":"other-')

    with serving(pseudonyms, lambda number, _: Reply(400) if number >= 15 else None) as service:
        with pytest.raises(ServiceError):
            job.run(service.url, rules=RULES, bounds=bounds, compression=form, max_concurrent_requests=1)
        service.script = None
        service.transform = other
        service.requests.clear()
        rules: bytes | None = RULES
        name = "a.ndjson.zst" if form else "a.ndjson"
        if change == "rules":
            rules = RULES + b"# other\n"
        elif change == "no rules":
            rules = None
        elif change == "input":
            for path in job.input.iterdir():
                path.write_bytes(path.read_bytes() + b"\n")
        elif change == "output":
            (job.output / name).write_bytes(b"")
            for part in job.output.glob("*.part"):
                part.unlink()
        else:
            job.ledger.unlink()
        result = job.run(service.url, rules=rules, bounds=bounds, compression=form, max_concurrent_requests=1)
    assert len(service.requests) == 25
    assert any(warning.startswith("1 files were pseudonymized again") for warning in result.warnings)
    for base, count in (("a", 5), ("b", 20)):
        lines = job.lines(f"{base}.ndjson.zst" if form else f"{base}.ndjson")
        assert lines == [other(json.dumps(patient(f"{base}{n}"), separators=(",", ":")).encode()) for n in range(count)]


def test_another_service_is_another_set_of_terms(tmp_path: Path) -> None:
    job = PseudonymizerJob(tmp_path)
    job.write("a.ndjson", patient("a"))
    with serving(pseudonyms) as one, serving(pseudonyms) as two:
        job.run(one.url)
        job.run(two.url)
        assert (len(one.requests), len(two.requests)) == (1, 1)


def test_a_new_compression_keeps_finished_files_and_restarts_an_unfinished_one(tmp_path: Path) -> None:
    job = PseudonymizerJob(tmp_path)
    job.write("a.ndjson", patient("a"))
    job.write("b.ndjson", *[patient(f"b{n}") for n in range(20)])
    bounds = PseudonymizerBounds(cut_every=100)
    with serving(pseudonyms, lambda number, _: Reply(400) if number >= 15 else None) as service:
        with pytest.raises(ServiceError):
            job.run(service.url, bounds=bounds, max_concurrent_requests=1)
        service.script = None
        service.requests.clear()
        job.run(service.url, bounds=bounds, compression=True)
    assert len(service.requests) == 20
    assert sorted(path.name for path in job.output.iterdir()) == ["a.ndjson", "b.ndjson.zst"]
    assert len(job.lines("b.ndjson.zst")) == 20


def test_outputs_without_an_input_are_removed_with_a_warning(tmp_path: Path) -> None:
    job = PseudonymizerJob(tmp_path)
    job.write("a.ndjson", patient("a"))
    gone = job.write("gone.ndjson", patient("gone"))
    with serving(pseudonyms) as service:
        job.run(service.url)
        (job.output / "other.ndjson.zst.part").write_bytes(b"x")
        gone.unlink()
        result = job.run(service.url)
    assert [path.name for path in job.output.iterdir()] == ["a.ndjson"]
    assert result.lines_out == 1
    assert any(warning.startswith("1 files of an earlier run were removed") for warning in result.warnings)


@pytest.mark.slow
def test_after_a_loss_of_any_end_of_the_ledger_or_the_part_the_output_is_the_same(tmp_path: Path) -> None:
    job = PseudonymizerJob(tmp_path)
    job.write("a.ndjson", *[patient(f"p{n}") for n in range(30)])
    bounds = PseudonymizerBounds(cut_every=150)
    name = "a.ndjson.zst"
    with serving(pseudonyms) as service:
        job.run(service.url, bounds=bounds, compression=True)
        expected = (job.output / name).read_bytes()
        (job.output / name).unlink()
        service.script = lambda number, _: Reply(400) if number >= 25 else None
        service.requests.clear()
        with pytest.raises(ServiceError):
            job.run(service.url, bounds=bounds, compression=True, max_concurrent_requests=1)
        ledger, part = job.ledger.read_bytes(), (job.output / f"{name}.part").read_bytes()
        service.script = None
        for size in range(0, len(ledger), 61):
            job.ledger.write_bytes(ledger[:size])
            (job.output / f"{name}.part").write_bytes(part)
            with suppress(FileNotFoundError):
                (job.output / name).unlink()
            result = job.run(service.url, bounds=bounds, compression=True)
            assert (job.output / name).read_bytes() == expected
            assert (result.resources_in, result.bytes_in) == (30, (job.input / "a.ndjson").stat().st_size)
