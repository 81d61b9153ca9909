"""The reset of a job's directory for ``continue --from``."""

from pathlib import Path

from flows.job.directory import JobDirectory
from tasks.shared.report import StepReport

STEPS = (
    StepReport(position=1, name="local_import", output="import"),
    StepReport(position=2, name="wait", directory="import_wait"),
    StepReport(position=3, name="pseudonymizer", output="pseudonymized"),
)


def test_a_reset_keeps_corrected_files_under_another_name_and_may_be_repeated(tmp_path: Path) -> None:
    job = JobDirectory(tmp_path / "job")
    for time in ("", "-2"):
        for folder in ("import", "import_wait", "pseudonymized"):
            (job.path / folder).mkdir(parents=True, exist_ok=True)
            (job.path / folder / "a.ndjson").write_text(folder)
        for position in (1, 2, 3):
            (job.path / ".done" / str(position)).mkdir(parents=True, exist_ok=True)
        for _ in range(2):  # killed in between
            job.reset(STEPS, 2)
        assert [path.name for path in (job.path / ".done").iterdir()] == ["1"]
        assert sorted(path.name for path in job.path.iterdir()) == [".done", "import", "import_wait.old", *(
            [f"import_wait.old{time}"] if time else []
        )]  # fmt: skip
        assert (job.path / f"import_wait.old{time}" / "a.ndjson").read_text() == "import_wait"


def test_a_reset_keeps_the_directory_of_an_earlier_wait(tmp_path: Path) -> None:
    job = JobDirectory(tmp_path / "job")
    (job.path / "import_wait").mkdir(parents=True)
    job.reset(STEPS, 3)
    assert (job.path / "import_wait").is_dir()
