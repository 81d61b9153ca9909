"""Bad input from the command line: a clear error, the right exit code, nothing half-written, nothing quoted.

Preflight findings: 2 when any is about configuration or input, 3 when all are about services that cannot be reached
now; no job after either.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conftest import Ran
from tests.peers.server import Raw, Reply, SeenRequest, closed_port, loopback

CANARY = "Canaryperson"
GOOD = b"".join(
    json.dumps({"resourceType": "Patient", "id": f"g{n}", "name": [{"family": CANARY}]}).encode() + b"\n"
    for n in range(20)
)


def config(directory: Path, *, steps: str = "[local_import]", **services: str) -> None:
    """A configuration in ``config.yaml`` that imports ``data/`` into ``jobs/``."""
    blocks = {"local_import": "{dir: data}"} | services
    lines = [f"  {name}: {block}" for name, block in blocks.items()]
    text = "services:\n" + "\n".join(lines)
    text += f"\npipeline: {{enabled_steps: {steps}}}\njobs_dir: jobs\n"
    text += "retry: {max_attempts: 2, initial_backoff_ms: 10, max_backoff_ms: 20}\n"
    (directory / "config.yaml").write_text(text)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Make a working directory with a configuration and one good file in ``data/``."""
    config(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "good.ndjson").write_bytes(GOOD)
    return tmp_path


def block(ran: Ran, reference: str) -> str:
    """Return the one error of that reference, with its context and hint."""
    parts = [part for part in re.split(r"(?m)^(?=error\[)", ran.err) if part.startswith(f"error[{reference}]")]
    assert parts, f"no error[{reference}] in:\n{ran.out}\n{ran.err}"
    return parts[0]


def refused(ran: Ran, reference: str, code: int, *named: str, hint: bool = True) -> None:
    """Assert that the error has its place and hint, and quotes nothing."""
    text = block(ran, reference)
    assert ran.code == code, ran.err
    assert [name for name in named if name not in text] == [], text
    assert not hint or "\nhint: " in text, text
    quiet(ran)


def quiet(ran: Ran) -> None:
    """No content of the input, no traceback."""
    assert CANARY not in ran.out + ran.err
    assert "Traceback" not in ran.out + ran.err


def no_job(sluice, place: Path) -> None:
    """No record and no directory of a job."""
    jobs = place / "jobs"
    assert not jobs.exists() or [path.name for path in jobs.iterdir() if path.name != ".prefect"] == []
    listed = sluice("job", "list", "config.yaml", "--json")
    assert json.loads(listed.out) == [], listed.out


def run_with(prefix: list[str], sluice, *arguments: str) -> Ran:
    """Run a command of ours behind another one."""
    import sys

    done = subprocess.run(
        [*prefix, sys.executable, "-m", "flows.run", *arguments],
        cwd=sluice.cwd, env=sluice.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr)


def missing(place: Path) -> None:
    shutil.rmtree(place / "data")


def nothing_in_it(place: Path) -> None:
    (place / "data" / "good.ndjson").rename(place / "data" / "good.json")


def empty_file(place: Path) -> None:
    (place / "data" / "good.ndjson").rename(place / "data" / "empty.ndjson")
    (place / "data" / "empty.ndjson").write_bytes(b"")


def clash(place: Path) -> None:
    config(place, local_import="{dir: data, recursive: true}")
    for ward in "ab":
        (place / "data" / ward).mkdir()
        (place / "data" / ward / "Patient.ndjson").write_bytes(GOOD)


@pytest.mark.parametrize(
    ("spoil", "reference", "named"),
    [
        (missing, "input-not-found", ["data"]),
        (nothing_in_it, "input-no-ndjson", ["data", "*.ndjson"]),
        (empty_file, "empty-file", ["empty.ndjson"]),
        (clash, "name-clash", ["a/Patient.ndjson", "b/Patient.ndjson"]),
    ],
)
def test_a_directory_that_cannot_be_imported_is_found_before_a_job_exists(sluice, place, spoil, reference, named):
    spoil(place)
    refused(sluice("pipeline", "start", "config.yaml"), reference, 2, *named)
    no_job(sluice, place)


def crtdl_files(place: Path) -> list[Path]:
    files = {
        "text.json": CANARY,
        "list.json": json.dumps([CANARY]),
        "wrapped.json": json.dumps({"resourceType": "Parameters", "parameter": [{"name": CANARY}]}),
        "half.crtdl": json.dumps({"cohortDefinition": {"display": CANARY}}),
        "data.ndjson": GOOD.decode(),
    }
    for name, text in files.items():
        (place / name).write_text(text)
    with (place / "large.json").open("wb") as file:
        file.truncate(3_000_000_000)
    os.mkfifo(place / "pipe.json")
    return [place / name for name in (*files, "large.json", "pipe.json")]


def test_a_file_that_is_neither_crtdl_nor_input_is_an_error_with_expected_and_found(sluice, place):
    for path in crtdl_files(place):
        ran = sluice("pipeline", "plan", "config.yaml", path)
        refused(ran, "not-a-crtdl", 2, path.name, "cohortDefinition", "found")
    refused(sluice("pipeline", "plan", "config.yaml", "nowhere"), "argument-not-found", 2, "nowhere")


def test_an_empty_argument_is_refused_and_is_not_the_working_directory(sluice, place):
    (place / "Patient.ndjson").write_bytes(GOOD)
    refused(sluice("pipeline", "start", "config.yaml", ""), "argument-not-found", 2)
    refused(sluice("pipeline", "start", "config.yaml", "--dir", ""), "argument-not-found", 2)
    no_job(sluice, place)


def test_a_url_that_is_none_is_refused(sluice, place):
    for url, reference in (
        ("http://[::1", "url-invalid"),
        (f"https://me:{CANARY}@host.example/x", "url-secret"),
    ):
        refused(sluice("pipeline", "plan", "config.yaml", url), reference, 2)


def test_two_inputs_are_refused(sluice, place):
    (place / "other").mkdir()
    refused(sluice("pipeline", "start", "config.yaml", "data", "other"), "two-inputs", 2)
    refused(sluice("pipeline", "start", "config.yaml", "data", "--dir", "other"), "two-inputs", 2)
    no_job(sluice, place)


def test_every_wrong_configuration_key_is_reported_at_once_with_its_key_path(sluice, place):
    (place / "config.yaml").write_text(
        f"""
services:
  local_import: {{dri: data}}
  send: {{send_as: direct_resource_load, url: "http://127.0.0.1:1/fhir", batch_size: 5000}}
  validation: {{url: "http://127.0.0.1:1", max_concurrent_requests: {CANARY}}}
pipeline: {{enabled_steps: [wait, local_import, teleport]}}
retry: {{max_attempts: 99}}
compresion: {{enabled: true}}
jobs_dir: jobs
"""
    )
    ran = sluice("pipeline", "start", "config.yaml")
    assert ran.code == 2
    quiet(ran)
    for key in (
        "services.local_import.dri", "services.send.url", "services.send.batch_size", "retry.max_attempts",
        "services.validation.max_concurrent_requests", "pipeline.enabled_steps", "compresion",
    ):  # fmt: skip
        assert re.search(rf"(?m)^  {re.escape(key)}", ran.err), f"{key} is not named in:\n{ran.err}"
    assert "config.yaml:3" in ran.err
    assert not (place / "jobs").exists()


# Services and URLs


def download(place: Path, url: str) -> None:
    """Import from a URL of the configuration: one with a secret in its query is not accepted as INPUT."""
    config(place, steps="[http_import]", http_import=f'{{urls: ["{url}"]}}')


def unreachable(port: int) -> dict[str, str]:
    return {"send": f'{{send_as: direct_resource_load, url: "http://127.0.0.1:{port}"}}'}


def test_a_service_that_does_not_answer_is_exit_code_3_and_no_job_exists(sluice, place):
    port = closed_port()
    config(place, steps="[local_import, send]", **unreachable(port))
    ran = sluice("pipeline", "start", "config.yaml")
    assert ran.code == 3, ran.err
    assert f"127.0.0.1:{port}" in ran.err
    assert "hint: " in ran.err
    no_job(sluice, place)


def test_an_unreachable_service_beside_bad_input_is_exit_code_2_and_both_are_listed(sluice, place):
    port = closed_port()
    config(place, steps="[local_import, send]", **unreachable(port))
    empty_file(place)
    ran = sluice("pipeline", "start", "config.yaml")
    refused(ran, "empty-file", 2, "empty.ndjson")
    assert f"127.0.0.1:{port}" in ran.err
    again = sluice("pipeline", "plan", "config.yaml")
    assert (again.code, again.err) == (ran.code, ran.err)
    no_job(sluice, place)


def test_a_url_with_404_is_found_before_a_job_exists_without_its_query(sluice, place):
    with loopback([Reply(404, CANARY.encode())]) as server:
        url = f"{server.url}/export/Patient.ndjson"
        download(place, f"{url}?token={CANARY}")
        refused(sluice("pipeline", "start", "config.yaml"), "url-refused", 2, url, "404")
    no_job(sluice, place)


def test_a_mended_file_is_imported_by_continue(sluice, place):
    (place / "data" / "bad.ndjson").write_bytes(GOOD + b'{"family": ' + CANARY.encode())
    ran = sluice("pipeline", "start", "config.yaml")
    refused(ran, "not-json", 1, "bad.ndjson:21")
    assert f"config.yaml {ran.job}" in ran.err
    (place / "data" / "bad.ndjson").write_bytes(GOOD)
    done = sluice("pipeline", "continue", "config.yaml", ran.job)
    assert done.code == 0, done.err
    assert len(list((place / "jobs" / ran.job).glob("import/*"))) == 2


# The disk


SMALL_DISK = """
mount -t tmpfs -o "size=$1,mode=700" tmpfs jobs || exit 99
shift
"$@"
code=$?
find jobs -mindepth 1 > listing
mount -o remount,size=500m jobs
[ "$code" -ne 3 ] || "$1" "$2" "$3" pipeline continue config.yaml latest > continued 2>&1 || exit 98
exit $code
"""
"""Of a job that ended for now, a larger disk is tried, too."""


def on_small_disk(sluice, place: Path, size: str, *arguments: str) -> tuple[Ran, list[str]]:
    """Run a command whose ``jobs/`` is a disk of that size; also return the paths on that disk at its end."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("mounting a small disk needs root and unshare")
    (place / "jobs").mkdir(mode=0o700)
    if subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", place / "jobs"], capture_output=True
    ).returncode:
        pytest.skip("this machine lets nobody mount a disk")
    ran = run_with(["unshare", "-m", "sh", "-c", SMALL_DISK, "sh", size], sluice, *arguments)
    return ran, (place / "listing").read_text().splitlines()


@pytest.mark.e2e
@pytest.mark.parametrize("size", ["20m", "110m"], ids=["for anything", "for the size a server tells"])
def test_a_disk_that_is_too_small_is_found_before_a_job_exists(sluice, place, size):
    config(place, steps="[http_import]")
    with loopback(lambda _: Reply(200, b"", length=200_000_000)) as server:
        start = ("pipeline", "start", "config.yaml", f"{server.url}/x.ndjson")
        ran, listing = on_small_disk(sluice, place, size, *start)
    refused(ran, "disk-space", 2, "jobs")
    assert listing == []
    no_job(sluice, place)


@pytest.mark.e2e
def test_a_disk_that_fills_up_is_a_clear_error_leaves_no_half_file_and_continue_goes_on(sluice, place):
    """A server that does not tell the size of a file beforehand: the disk fills up while it is written."""
    config(place, steps="[http_import]")
    with (place / "config.yaml").open("a") as file:
        file.write("compression: {enabled: false}\n")
    small, large = GOOD, GOOD * (125_000_000 // len(GOOD))

    def answer(seen: SeenRequest) -> Raw:
        body = small if seen.target == "/a.ndjson" else large
        return Raw(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + (body if seen.method == "GET" else b""))

    with loopback(answer) as server:
        urls = f"services.http_import.urls=[{server.url}/a.ndjson, {server.url}/x.ndjson]"
        ran, listing = on_small_disk(sluice, place, "108m", "pipeline", "start", "config.yaml", "--set", urls)
        asked = [seen.target for seen in server.seen if seen.method == "GET"]
    refused(ran, "disk-full", 3, "x.ndjson")
    names = [Path(path).name for path in listing]
    assert "job.log" in names
    found = [name for name in names if "ndjson" in name and not name.endswith(("-files.ndjson", ".json"))]
    assert found == ["a.ndjson"]
    assert " is complete" in (place / "continued").read_text()
    assert sorted(asked) == ["/a.ndjson", "/x.ndjson", "/x.ndjson"], "the finished file is not fetched again"


# Job ids


@pytest.mark.parametrize(
    "command",
    [
        ["pipeline", "status", "config.yaml", "JOB"],
        ["pipeline", "continue", "config.yaml", "JOB"],
        ["pipeline", "continue", "config.yaml", "JOB", "--from", "local_import", "--yes"],
        ["job", "delete", "config.yaml", "JOB"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_an_unknown_job_and_an_id_that_is_none_are_usage_errors(sluice, place, command):
    for job, reference in ((str(uuid4()), "job-unknown"), ("../data", "job-id"), ("a job\x1b[2J", "job-id")):
        ran = sluice(*[job if word == "JOB" else word for word in command])
        refused(ran, reference, 2, job.partition("\x1b")[0])
        assert "\x1b" not in ran.out + ran.err
    assert (place / "data" / "good.ndjson").exists()
    no_job(sluice, place)
