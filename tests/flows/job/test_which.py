"""Job arguments (4-product.md §2): an id, the unique beginning of one, or ``latest``."""

from __future__ import annotations

from pathlib import Path

import pytest

from config import load_config
from flows.job.session import opened
from flows.job.which import by_directory, in_record
from tasks.shared.errors import InputError

ONE, OTHER, RECORDED = (
    f"{start}-1111-4222-8333-444455556666" for start in ("0b2c4a5e", "0b2c9999", "77aa0000")
)  # fmt: skip


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    for name in (ONE, OTHER, ".prefect", "notes"):
        (tmp_path / name).mkdir()
    return tmp_path


def found(jobs: Path, text: str, *, to_begin: tuple[str, ...] = ()) -> str:
    return in_record(
        jobs, text, ids=lambda: [ONE, OTHER, RECORDED], to_begin=lambda: to_begin, latest=lambda: RECORDED
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (ONE, ONE), (ONE.upper(), ONE), ("0b2c4", ONE), ("0B2C9", OTHER), (f"{ONE[:13]}", ONE), ("77aa", RECORDED),
        ("latest", RECORDED), (f"99999999{ONE[8:]}", f"99999999{ONE[8:]}"),
    ],
)  # fmt: skip
def test_an_id_its_beginning_and_latest_name_a_job(jobs: Path, text: str, meant: str) -> None:
    assert found(jobs, text) == meant


@pytest.mark.parametrize(
    ("text", "reference", "says"),
    [
        ("0b2", "job-id", "4 characters"), ("../notes", "job-id", "job list"), ("lates", "job-id", "latest"),
        ("0b2c", "id-ambiguous", f"{ONE}, {OTHER}"), ("0b2d", "job-unknown", f"did you mean {ONE}"),
    ],
)  # fmt: skip
def test_what_names_none_or_several_is_an_error_with_the_candidates(
    jobs: Path, text: str, reference: str, says: str
) -> None:
    with pytest.raises(InputError) as caught:
        found(jobs, text)
    assert caught.value.reference == reference
    assert says in caught.value.render()


def test_a_job_that_has_not_begun_counts_where_a_beginning_must_name_one(jobs: Path) -> None:
    with pytest.raises(InputError) as caught:
        found(jobs, "0b2c4a5e", to_begin=("0b2c4a5e-9999-4222-8333-444455556666",))
    assert caught.value.reference == "id-ambiguous"


def test_a_jobs_directory_that_is_not_there_has_no_job(tmp_path: Path) -> None:
    assert by_directory(tmp_path / "jobs", "0b2c") is None
    with pytest.raises(InputError, match="there is no job yet"):
        in_record(tmp_path, "latest", ids=list, to_begin=list, latest=lambda: None)


@pytest.mark.parametrize(("text", "reference"), [("latest", "job-unknown"), ("0b2d", "job-unknown"), ("x", "job-id")])
def test_what_names_no_job_is_refused_before_a_server_is_started_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reference: str
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "c.yaml").write_text(f"pipeline: {{enabled_steps: [local_import]}}\njobs_dir: {tmp_path / 'jobs'}\n")
    with pytest.raises(InputError) as caught, opened(load_config(tmp_path / "c.yaml"), text):
        pass
    assert caught.value.reference == reference
    assert not (tmp_path / "jobs").exists()
