"""Runs of each step against its service in a directory, with ``CANARY`` in the data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.peers import fhir, flattening, pseudonymization, validation
from tests.peers.s3 import S3Job, configuration
from tests.peers.server import SeenRequest
from tests.peers.transfer import TransferJob
from tests.peers.validation import CANARY


def is_request(method: str, part: str = "") -> Callable[[SeenRequest], bool]:
    """Return a predicate that accepts requests of this method with this part in the target."""
    return lambda seen: seen.method == method and part in seen.target


def pseudonymizer(directory: Path, url: str, **options: Any) -> None:
    job = pseudonymization.PseudonymizerJob(directory)
    job.write("a.ndjson", pseudonymization.patient("p0", name=[{"family": CANARY}]))
    job.run(url, attempts=1, **options)


def validator(directory: Path, url: str, **options: Any) -> None:
    job = validation.ValidationJob(directory)
    job.write("a.ndjson", validation.patient("p0", name=[{"family": CANARY}]))
    job.validate(url, attempts=1, **options)


def flattener(directory: Path, url: str, **options: Any) -> None:
    job = flattening.FlatteningJob(directory)
    job.write("a.ndjson", flattening.patient_line(1))
    job.run(url, attempts=1, **options)


def load(directory: Path, url: str, **options: Any) -> None:
    job = fhir.DirectLoadJob(directory)
    job.write("a.ndjson", fhir.observation("o0", text=CANARY))
    job.send(url, attempts=1, **options)


def transfer(directory: Path, url: str, **options: Any) -> None:
    job = TransferJob(directory)
    job.fill()
    job.send(url, attempts=1, **options)


def upload(directory: Path, url: str, **options: Any) -> None:
    job = S3Job(directory)
    job.write("a.ndjson", b'{"resourceType":"Patient","id":"p"}\n')
    job.send(configuration(url, attempts=1, **options))
