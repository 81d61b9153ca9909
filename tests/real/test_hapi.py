"""HAPI's JPA server takes a direct load and a transfer (docs/services.md)."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.sandbox.data import DATA
from tasks.send.step import STEP
from tasks.shared.errors import TerminalError
from tasks.shared.report import StepReport
from tests.peers.data import observation, patient, write
from tests.peers.job import configuration, context
from tests.real.conftest import Start

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PROJECT = "http://medizininformatik-initiative.de/sid/project-identifier"


def send(directory: Path, url: str, **settings: Any) -> StepReport:
    settings = {"send_as": "direct_resource_load", "url": url} | settings
    return STEP.run(context(directory, "send", configuration({"send": settings}), source=directory / "import"))


def coded(identifier: str, of: str = "kept", **more: Any) -> dict[str, Any]:
    return observation(identifier, of, **{"status": "final", "code": {"text": "made up"}} | more)


def test_loads_refusals_and_transfers(start: Start, tmp_path: Path) -> None:
    url = start("hapi")
    with httpx.Client(base_url=f"{url}/fhir/", trust_env=False, timeout=60) as http:

        def get(path: str) -> Any:
            return http.get(path, headers={"Accept": "application/fhir+json", "Cache-Control": "no-cache"})

        # The demo's data, twice: the second load changes nothing.
        keys = set()
        for turn in ("first", "second"):
            for source in sorted(DATA.glob("*.ndjson")):
                lines = source.read_bytes().splitlines()
                write(tmp_path / turn / "import" / source.name, *lines)
                resources = [entry["resource"] for line in lines for entry in json.loads(line)["entry"]]
                keys |= {f"{one['resourceType']}/{one['id']}" for one in resources}
            report = send(tmp_path / turn, url, batch_size=30, max_concurrent_requests=4)
            assert report.resources_out == len(keys)
        assert {get(key).json()["meta"]["versionId"] for key in keys} == {"1"}
        assert '"value":1.50' in get("MedicationAdministration/demo-01-given-1").text

        # References to what comes later, to what never comes, and resources that are wrong.
        wrong = [coded("status", status="no such status"), coded("123"), coded("date", effectiveDateTime="yesterday")]
        lost = coded("lost", "nobody")
        early = [coded(f"early-{number}", "late") for number in range(20)]
        write(tmp_path / "odd" / "import" / "a.ndjson", *early, *wrong, lost)
        write(tmp_path / "odd" / "import" / "b.ndjson", patient("late"), patient("kept"))
        with pytest.raises(TerminalError) as caught:
            send(tmp_path / "odd", url)
        assert caught.value.reference == "send-refused"
        assert get("Observation?subject=Patient/late&_summary=count").json()["total"] == 20
        assert get("Patient/kept").status_code == 200
        assert get("Observation/lost").status_code == 404
        refused = (tmp_path / "odd" / "send" / "summary.csv").read_text().splitlines()[1:]
        assert len(refused) == 4

        # A transfer, found and read as the receiving process does it; the next one replaces it.
        transfer = {"project_identifier": "project-1", "organization_identifier": "hospital.test"}
        for number in (1, 2):
            source = write(tmp_path / f"zip-{number}" / "import" / "a.ndjson", coded(f"o{number}"))
            send(tmp_path / f"zip-{number}", url, send_as="transfer_load", transfer=transfer)
            (entry,) = get(f"DocumentReference?identifier={PROJECT}|project-1").json()["entry"]
            attachment = entry["resource"]["content"][0]["attachment"]
            data = http.get(attachment["url"], headers={"Accept": "application/zip"}).content
            assert attachment["size"] == len(data)
            assert attachment["hash"] == base64.b64encode(hashlib.sha1(data).digest()).decode()
            assert zipfile.ZipFile(io.BytesIO(data)).read("a.ndjson") == source.read_bytes()
