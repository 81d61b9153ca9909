"""Fake pseudonymization service, and a job that uses it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tasks.pseudonymizer.pseudonymization import PseudonymizerBounds, run
from tasks.shared.report import StepReport
from tests.peers import job
from tests.peers.job import resource
from tests.peers.lines import read_lines
from tests.peers.server import Reply, ScriptedService, SeenRequest

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


Script = Callable[[int, PseudonymizationRequest], "Reply | None"]


def identity(resource: bytes) -> bytes:
    return resource


def pseudonyms(resource: bytes, key: bytes = b"key") -> bytes:
    """Return every id, family name and reference by a keyed hash: deterministic, and consistent over requests."""

    def hashed(match: re.Match[bytes]) -> bytes:
        return match[1] + hashlib.sha256(key + match[2]).hexdigest()[:20].encode() + b'"'

    resource = re.sub(rb'("(?:id|family)":\s*")([^"]+)"', hashed, resource)
    return re.sub(rb'("reference":\s*"[A-Za-z]+/)([^"]+)"', hashed, resource)


class FakePseudonymizer(ScriptedService[PseudonymizationRequest]):
    """Gives back ``transform(resource)``. ``reads_config`` False is a server before 2.34.0. A probe's number is -1."""

    def __init__(self, transform: Callable[[bytes], bytes] = identity, script: Script | None = None) -> None:
        self.transform = transform
        self.reads_config = True
        self.probes: list[PseudonymizationRequest] = []
        super().__init__(script)

    def read(self, seen: SeenRequest) -> PseudonymizationRequest:
        if b'"Parameters"' not in seen.body[:60]:
            return PseudonymizationRequest(**vars(seen), resource=seen.body)
        config, resource = msgspec.json.decode(seen.body, type=_DeidentifyParameters).parameter
        assert (config.name, resource.name) == ("config", "resource")
        assert config.valueAttachment["contentType"] == "application/yaml"
        data = base64.b64decode(config.valueAttachment["data"], validate=True)
        return PseudonymizationRequest(**vars(seen), resource=bytes(resource.resource), config=data)

    def note(self, request: PseudonymizationRequest) -> int:
        if request.is_probe:
            self.probes.append(request)
            return -1
        return super().note(request)

    def answer(self, number: int, request: PseudonymizationRequest, said: Reply | None) -> Reply:
        if request.is_probe and self.reads_config:
            return said or Reply(400, b"{}")
        return said or Reply(body=request.resource if request.is_probe else self.transform(request.resource))


class _DeidentifyParameter(msgspec.Struct):
    name: str
    valueAttachment: dict[str, str] = {}  # noqa: N815
    resource: msgspec.Raw = msgspec.Raw()


class _DeidentifyParameters(msgspec.Struct):
    resourceType: str  # noqa: N815
    parameter: list[_DeidentifyParameter] = []


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


def patient(identifier: str, /, **more: Any) -> dict[str, Any]:
    return resource("Patient", identifier, **more)


def observation(identifier: str, of: str = "p", **more: Any) -> dict[str, Any]:
    return resource("Observation", identifier, subject={"reference": f"Patient/{of}"}, **more)


def bundle(identifier: str, *resources: dict[str, Any], kind: str = "transaction", **more: Any) -> dict[str, Any]:
    entries = [
        {
            "fullUrl": f"http://old.example/fhir/{one['resourceType']}/{one['id']}",
            "resource": one,
            "request": {"method": "PUT", "url": f"{one['resourceType']}/{one['id']}"},
        }
        for one in resources
    ]
    return resource("Bundle", identifier, type=kind, **more, entry=entries)


def patient_bundle(number: int, count: int, size: int = 0) -> dict[str, Any]:
    """Return a patient's Bundle of ``count`` entries, each with a text of ``size`` characters."""
    of = f"p{number}"
    rest = [observation(f"{of}-o{index}", of, text="x" * size) for index in range(1, count)]
    return bundle(f"b{number}", patient(of), *rest)
