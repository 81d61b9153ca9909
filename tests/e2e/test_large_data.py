"""Large data from the command line: memory does not grow with it (performance.md: at most 300 MB for the process).

Campaigns that print what they measured beside the limit. The peak is ``VmHWM`` of the command's own process, as the
kernel keeps it; the Prefect server is another process.
"""

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

from tests.bench.echo import serving
from tests.peers.server import Raw, Reply, SeenRequest, loopback

MB = 1_000_000
LIMIT = 300
"""MB, performance.md."""
RESULT = "/fhir/__status/11111111-1111-4111-8111-111111111111"

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1800)]


@dataclass
class MeasuredCommand:
    """A command that ended, its peak memory in MB and its seconds."""

    code: int
    out: str
    err: str
    peak: float
    seconds: float


def measured(sluice, *arguments: str) -> MeasuredCommand:
    """Run a command and watch its memory."""
    began = time.monotonic()
    child = sluice.start(*arguments)
    peak = 0
    while child.poll() is None:
        peak = max(peak, high_water(child.pid))
        time.sleep(0.05)
    out, err = child.communicate()
    return MeasuredCommand(child.returncode, out, err, peak * 1024 / MB, time.monotonic() - began)


def high_water(pid: int) -> int:
    """``VmHWM`` in KiB; 0 when the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


def bundles(count: int) -> Iterator[bytes]:
    """Yield one patient's transaction Bundle a line, 80 kB in 101 resources, all ids different."""
    note = "Probe kühl gelagert; Wert im Vergleich zur Vorwoche leicht verändert, Kontrolle in 14 Tagen. " * 4
    entries = [{"resource": {"resourceType": "Patient", "id": "p@@@@@@", "birthDate": "1950-01-01"}}]
    entries += [
        {
            "resource": {
                "resourceType": "Observation", "id": f"o@@@@@@-{n}", "status": "final",
                "subject": {"reference": "Patient/p@@@@@@"}, "note": [{"text": note}],
                "code": {"coding": [{"system": "http://loinc.org", "code": f"{n * 37 % 9999}-7"}]},
                "valueQuantity": {"value": n * 1.25, "unit": "mg/dL", "system": "http://unitsofmeasure.org"},
            },
            "request": {"method": "PUT", "url": f"Observation/o@@@@@@-{n}"},
        }
        for n in range(100)
    ]  # fmt: skip
    line = json.dumps({"resourceType": "Bundle", "type": "transaction", "entry": entries}, ensure_ascii=False).encode()
    for number in range(count):
        yield line.replace(b"@@@@@@", b"%06d" % number)


def write_data(directory: Path, size: int, files: int) -> tuple[int, int]:
    """``size`` bytes in ``files`` files; resources and bytes written."""
    directory.mkdir()
    one = len(next(bundles(1))) + 1
    lines = size // one
    source = bundles(lines)
    for number in range(files):
        with (directory / f"batch-{number:04}.ndjson").open("wb") as file:
            for _ in range(lines // files + (number < lines % files)):
                file.write(next(source) + b"\n")
    return lines * 101, lines * one


def write_config(directory: Path, *, port: int | None = None) -> None:
    steps = "[local_import, send]" if port else "[local_import]"
    send = f'send: {{send_as: direct_resource_load, url: "http://127.0.0.1:{port}"}}' if port else ""
    (directory / "config.yaml").write_text(
        f"services:\n  local_import: {{dir: data}}\n  {send}\npipeline: {{enabled_steps: {steps}}}\njobs_dir: jobs\n"
    )


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path: Path) -> Iterator[None]:
    """pytest keeps the directories of its last runs: these would be gigabytes."""
    yield
    for name in ("data", "jobs"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)


@pytest.fixture
def sink_port() -> Iterator[int]:
    """Yield a server that answers every transaction at once, in another process."""
    with serving() as port:
        yield port


@pytest.mark.parametrize(("size", "files"), [(100, 10), (2000, 10), (2000, 5000)])
def test_an_import_takes_no_more_memory_for_2_gb(sluice, tmp_path, size, files):
    resources, written = write_data(tmp_path / "data", size * MB, files)
    write_config(tmp_path)
    ran = measured(sluice, "pipeline", "start", "config.yaml", "--json")
    assert ran.code == 0, ran.err
    step = json.loads(ran.out)["steps"][0]
    print(
        f"import of {written / MB:.0f} MB in {files} files: peak {ran.peak:.0f} MB (limit {LIMIT}), "
        f"{written / MB / step['seconds']:.0f} MB/s, whole command {ran.seconds:.1f} s"
    )
    assert step["files"] == files
    assert step["resources_out"] == resources
    assert ran.peak <= LIMIT


@pytest.mark.parametrize("size", [100, 2000])
def test_import_and_send_take_no_more_memory_for_2_gb(sluice, tmp_path, sink_port, size):
    resources, written = write_data(tmp_path / "data", size * MB, 10)
    write_config(tmp_path, port=sink_port)
    ran = measured(sluice, "pipeline", "start", "config.yaml", "--json")
    assert ran.code == 0, ran.err
    step = json.loads(ran.out)["steps"][1]
    print(
        f"import and send of {written / MB:.0f} MB: peak {ran.peak:.0f} MB (limit {LIMIT}), "
        f"send {written / MB / step['seconds']:.0f} MB/s, whole command {ran.seconds:.1f} s"
    )
    assert step["resources_out"] == resources
    assert ran.peak <= LIMIT


@pytest.mark.parametrize("broken", [False, True], ids=["valid", "no JSON at its end"])
def test_a_single_line_of_300_mb_is_imported_or_named(sluice, tmp_path, broken):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "small.ndjson").write_bytes(b'{"resourceType":"Patient","id":"1"}\n')
    with (tmp_path / "data" / "line.ndjson").open("wb") as file:
        file.write(b'{"resourceType":"Patient","id":"first"}\n{"resourceType":"Bundle","type":"collection","entry":[')
        size = entries = 0
        for line in bundles(300 * MB // 80_000 * 2):
            entries += 1
            size += file.write((b"," if size else b"") + b'{"resource":' + line + b"}")
            if size >= 300 * MB:
                break
        file.write(b"]" if broken else b"]}\n")
    write_config(tmp_path)
    ran = measured(sluice, "pipeline", "start", "config.yaml", "--json")
    print(
        f"a line of {size / MB:.0f} MB: exit code {ran.code}, peak {ran.peak:.0f} MB, whole command {ran.seconds:.1f} s"
    )
    (job,) = [path for path in (tmp_path / "jobs").iterdir() if len(path.name) == 36]
    names = sorted(path.name for path in (job / "import").iterdir())
    if broken:
        assert ran.code == 1
        assert "error[not-json]" in ran.err
        assert "line.ndjson:2" in ran.err
        assert names == ["small.ndjson.zst"]
    else:
        assert ran.code == 0, ran.err
        assert json.loads(ran.out)["steps"][0]["resources_out"] == 2 + entries
        assert names == ["line.ndjson.zst", "small.ndjson.zst"]


@pytest.mark.parametrize("size", [30, 3000])
def test_an_extraction_takes_no_more_memory_for_a_file_of_3_gb(sluice, tmp_path, size):
    """An extraction server makes the one file of its result while it sends it; no line of it is like another."""
    lines = size * MB // (len(next(bundles(1))) + 1)
    length = lines * (len(next(bundles(1))) + 1)
    manifest = {"output": [{"type": "NDJSON Bundle", "url": "/out/large.ndjson"}], "error": []}

    def answer(seen: SeenRequest) -> Reply | Raw:
        if seen.target == RESULT:
            return Reply(200, json.dumps(manifest).encode(), {"Content-Type": "application/json"})
        if seen.method == "HEAD":
            return Reply(200, length=length)
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length
        return Raw(chain([head], (line + b"\n" for line in bundles(lines)))) if "/out/" in seen.target else Reply(404)

    with loopback(answer) as server:
        (tmp_path / "config.yaml").write_text(
            f'services: {{extractor: {{base_url: "{server.url}"}}}}\n'
            "pipeline: {enabled_steps: [extractor]}\njobs_dir: jobs\n"
        )
        ran = measured(sluice, "pipeline", "start", "config.yaml", f"{server.url}{RESULT}", "--json")
    assert ran.code == 0, ran.err
    (step,) = json.loads(ran.out)["steps"]
    print(
        f"extraction of one file of {step['bytes_in'] / MB:.0f} MB, stored in {step['bytes_out'] / MB:.0f} MB: "
        f"peak {ran.peak:.0f} MB (limit {LIMIT}), whole command {ran.seconds:.1f} s"
    )
    assert step["resources_out"] == lines * 101
    assert ran.peak <= LIMIT
