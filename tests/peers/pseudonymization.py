"""A scripted pseudonymization service, and a job that uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tasks.pseudonymizer.pseudonymization import PseudonymizerBounds, run
from tasks.shared.report import StepReport
from tests.peers import job
from tests.peers.lines import read_lines
from tests.peers.server import Reply, ScriptedService, SeenRequest
from tests.peers.services import deidentify

RULES = b"fhirPathRules:\n  - {path: Patient.id, method: cryptoHash}\nparameters: {cryptoHashKey: k}\n"
REMOVING = b"fhirPathRules:\n  - {path: Observation, method: remove}\n"


@dataclass(frozen=True)
class PseudonymizationRequest(SeenRequest):
    """``config`` is the anonymization file in it."""

    resource: bytes = field(default=b"", repr=False)
    config: bytes | None = None

    @cached_property
    def is_probe(self) -> bool:
        try:
            yaml.safe_load(self.config or b"")
        except yaml.YAMLError:
            return True
        return False


def identity(resource: bytes) -> bytes:
    return resource


class FakePseudonymizer(ScriptedService[PseudonymizationRequest]):
    """Gives back ``transform(resource)``. ``reads_config`` False is a server before 2.34.0. A probe's number is -1."""

    def __init__(
        self,
        transform: Callable[[bytes], bytes] = identity,
        script: Callable[[int, PseudonymizationRequest], Reply | None] | None = None,
    ) -> None:
        self.transform = transform
        self.reads_config = True
        self.probes: list[PseudonymizationRequest] = []
        super().__init__(script)

    def read(self, seen: SeenRequest) -> PseudonymizationRequest:
        return PseudonymizationRequest(
            **vars(seen), **dict(zip(("resource", "config"), deidentify(seen.body), strict=True))
        )

    def note(self, request: PseudonymizationRequest) -> int:
        if request.is_probe:
            self.probes.append(request)
            return -1
        return super().note(request)

    def answer(self, number: int, request: PseudonymizationRequest, said: Reply | None) -> Reply:
        if request.is_probe and self.reads_config:
            return said or Reply(400, b"{}")
        return said or Reply(body=request.resource if request.is_probe else self.transform(request.resource))


serving = FakePseudonymizer
"""``with serving(…) as service``"""


class PseudonymizerJob(job.StepJob):
    """A job whose data is pseudonymized."""

    step = "pseudonymizer"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.output = directory / "pseudonymized"

    def run(
        self,
        url: str,
        *,
        bounds: PseudonymizerBounds | None = None,
        attempts: int = 3,
        rules: bytes | None = None,
        compression: bool = False,
        real_sleep: bool = False,
        **settings: Any,
    ) -> StepReport:
        if rules is not None:
            settings["anonymization_config"] = str(self.directory / "rules.yaml")
            (self.directory / "rules.yaml").write_bytes(rules)
        services = {"pseudonymizer": {"url": url, **settings}}
        config = job.configuration(services, attempts=attempts, compression={"enabled": compression})
        return run(self.prepare(config), bounds=bounds, sleep=None if real_sleep else self.slept.append)

    def lines(self, name: str) -> list[bytes]:
        """Return the lines of an output file."""
        return list(read_lines(self.output / name))
