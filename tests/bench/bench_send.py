"""Speed of ``direct_resource_load`` against the limit of the machine (performance.md).

    python -m tests.bench send [--mb 100] [--files 8] [--requests 2] [--rounds 5] [--zst]

A service in another process (``echo.py``) reads each transaction and answers at once. The limit is that of
performance.md: two threads of ``http.client`` that post 80 kB to the same service, which sends them back. Load and
limit are measured in turn, in several rounds; the target is a ratio of at least 0.6. For comparison: our own client and
``http.client`` posting ready-made transactions, and what splitting the input into resources costs alone.
``--mb 2000 --rounds 1`` shows that memory does not grow with the data (at most 300 MB).
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from config import PipelineConfig
from tasks.send.batches import HEADERS
from tasks.send.comparison import compare
from tasks.send.direct import run
from tasks.shared.fhir.bundle import cut
from tasks.shared.files.data_directory import data_files
from tasks.shared.http.client import ServiceClient
from tests.bench.data import as_input, compress, write_files
from tests.bench.echo import MB, in_threads, in_turn, limit, ratio, serving, step_options
from tests.bench.memory import MIB
from tests.bench.memory import peak as peak_bytes
from tests.peers.job import context
from tests.peers.lines import numbered_lines

_PROFILE = "https://example.org/fhir/StructureDefinition/Laboratory"
_CATEGORY = "http://terminology.hl7.org/CodeSystem/observation-category"
_CODES = [("2345-7", "Glucose"), ("718-7", "Hemoglobin"), ("2160-0", "Creatinine"), ("2951-2", "Sodium")]


def patient(number: int, chance: random.Random) -> bytes:
    """A made-up patient's Bundle as one line: about 80 kB in about 70 resources, as an extraction server gives them."""
    name = str(uuid.UUID(int=chance.getrandbits(128)))
    entries: list[dict[str, Any]] = [{"resourceType": "Patient", "id": name, "birthDate": "1950-01-01"}]
    for index in range(chance.randrange(20, 120)):
        code, text = chance.choice(_CODES)
        entries.append(
            {
                "resourceType": "Observation",
                "id": str(uuid.UUID(int=chance.getrandbits(128))),
                "meta": {"profile": [_PROFILE], "source": f"#{number}"},
                "status": "final",
                "identifier": [{"system": "https://example.org/sid/lab", "value": f"{number}-{index}"}],
                "category": [
                    {"coding": [{"system": "http://loinc.org", "code": "26436-6"}]},
                    {"coding": [{"system": _CATEGORY, "code": "lab"}]},
                ],
                "note": [{"text": "Probe kühl gelagert; Wert im Vergleich zur Vorwoche leicht verändert, Kontrolle."}],
                "referenceRange": [{"low": {"value": 1.5, "unit": "mg/dL"}, "high": {"value": 9.25, "unit": "mg/dL"}}],
                "code": {"coding": [{"system": "http://loinc.org", "code": code, "display": text}], "text": text},
                "subject": {"reference": f"Patient/{name}"},
                "effectiveDateTime": f"20{index % 24:02}-03-04T05:06:07+01:00",
                "valueQuantity": {"value": index * 1.25, "unit": "mg/dL", "system": "http://unitsofmeasure.org"},
            }
        )
    put = [
        {"fullUrl": f"https://e.example/{one['id']}", "resource": one, "request": {"method": "PUT", "url": "x"}}
        for one in entries
    ]
    line = {"resourceType": "Bundle", "id": f"b{number}", "type": "transaction", "entry": put}
    return json.dumps(line, separators=(",", ":")).encode()


class SendFigures(NamedTuple):
    """One load: ``seconds`` by the clock and of CPU time, bytes sent, requests."""

    seconds: float
    cpu: float
    sent: int
    requests: int


def load(port: int, directory: Path, job: Path, requests: int = 2) -> SendFigures:
    """Run one load of ``directory``."""
    settings = {"url": f"http://127.0.0.1:{port}", "max_concurrent_requests": requests}
    config = PipelineConfig.model_validate({"services": {"send": {"send_as": "direct_resource_load"} | settings}})
    given = context(job, "send", config, source=as_input(directory, job))
    started, cpu = time.perf_counter(), time.process_time()
    result = run(given, compare(given))
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return SendFigures(seconds, cpu, result.bytes_out or 0, given.meter.requests)


def client(port: int, body: bytes, size: int, threads: int = 2) -> float:
    """MB/s that ``ServiceClient`` posts: more than that no step that uses it can reach."""
    config = PipelineConfig.model_validate({})
    each = max(1, size // threads // len(body))
    with ServiceClient("send", tls=config.tls, retry=config.retry) as service:
        url = f"http://127.0.0.1:{port}/fhir"

        def work() -> None:
            for _ in range(each):
                service.send("POST", url, operation="send", content=body, headers=HEADERS)

        return each * threads * len(body) / in_threads(threads, work) / MB


def split(directory: Path, size: int) -> float:
    """MB/s at which the input is read and cut into resources."""
    done = 0
    started = time.perf_counter()
    for path in data_files(directory):
        for number, line in numbered_lines(path):
            cut(line, file=path.name, number=number)
            done += len(line)
        if done > size:
            break
    return done / (time.perf_counter() - started) / MB


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    step_options(parser, requests=2)


def main(given: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name, serving() as port:
        data = Path(name) / "data"
        chance = random.Random(7)
        size = write_files(data, given.mb, given.files, [patient(number, chance) for number in range(200)])
        if given.zst:
            compress(data)
        base = peak_bytes() / MIB
        one = json.loads(patient(0, random.Random(1)))["entry"][1]
        ready = json.dumps({"resourceType": "Bundle", "entry": [one] * 70}, separators=(",", ":")).encode()
        some = min(size, 50 * MB)
        loads: list[SendFigures] = []

        def step(number: int) -> float:
            loads.append(load(port, data, Path(name) / f"job-{number}", given.requests))
            return loads[-1].sent / loads[-1].seconds / MB

        ours, bare, posted, alone = in_turn(
            given.rounds,
            step,
            lambda _: limit(port, size=some),
            lambda _: limit(port, "/fhir", some, body=ready),
            lambda _: client(port, ready, some),
        )
        peak = peak_bytes() / MIB
        cutting = split(data, some)
    sent, requests = loads[0].sent, loads[0].requests
    cpu = min(one.cpu / one.requests for one in loads) * 1000
    print(f"input               {size / MB:6.0f} MB in {given.files} files, {'zst' if given.zst else 'plain'}")
    print(f"http.client, 80 kB  {bare.median:6.0f} MB/s, best {bare.best:.0f}")
    print(f"direct load         {ours.median:6.0f} MB/s of bodies, best {ours.best:.0f}")
    print(f"                    {requests} requests of {sent / requests / 1000:.0f} kB")
    print(f"CPU of a request    {cpu:9.2f} ms, its answer checked (target ≤ 0.6)")
    print(f"ratio                 {ratio(ours, bare)} (target ≥ 0.6)")
    print(f"peak memory         {peak:6.0f} MiB, {base:.0f} MiB before the load (target ≤ 300)")
    print(f"http.client, ready  {posted.median:6.0f} MB/s, best {posted.best:.0f}: transactions that need not be made")
    print(f"ServiceClient, same {alone.median:6.0f} MB/s, best {alone.best:.0f}")
    print(f"split with reading  {cutting:6.0f} MB/s (target ≥ 500)")
