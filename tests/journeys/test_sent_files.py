"""The release report and what arrives, where files are sent as they are: the same files, hashes and counts."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Commands
from tests.peers.report import document
from tests.peers.s3 import BUCKET, KEY_ID, SECRET, ScriptedStore
from tests.peers.server import ScriptedServer
from tests.peers.services import FhirDouble

Arrived = Callable[[], Mapping[str, bytes]]


@contextmanager
def s3() -> Iterator[tuple[dict[str, Any], Arrived]]:
    """Yield the keys of ``services.send``, and what returns the content of each file in the bucket."""
    with ScriptedStore() as store:
        keys = {"bucket": BUCKET, "region": "r", "access_key_id": KEY_ID, "secret_access_key": SECRET}
        keys |= {"endpoint": store.url, "use_path_style": True}
        yield (
            {"send_as": "s3_upload", "s3": keys},
            lambda: {Path(key).name: body for key, body in store.s3.objects.items()},
        )


@contextmanager
def transfer() -> Iterator[tuple[dict[str, Any], Arrived]]:
    """Yield the keys of ``services.send``, and what returns the content of each file in the zip."""
    with ScriptedServer(FhirDouble()) as store:
        keys = {"project_identifier": "p", "organization_identifier": "o"}

        def arrived() -> dict[str, bytes]:
            [binary] = [json.loads(body) for key, body in store.answer.resources.items() if key.startswith("Binary/")]
            with zipfile.ZipFile(io.BytesIO(base64.b64decode(binary["data"]))) as archive:
                return {name: archive.read(name) for name in archive.namelist()}

        yield {"send_as": "transfer_load", "url": store.url, "transfer": keys}, arrived


@pytest.mark.parametrize("corrected", [False, True], ids=["as imported", "corrected"])
@pytest.mark.parametrize("mode", [s3, transfer])
def test_what_the_report_is_about_arrives(sluice: Commands, project: Path, mode: Any, corrected: bool) -> None:
    with mode() as (send, arrived):
        known = {
            "services": {"local_import": {"dir": "data"}, "send": send}, "compression": {"enabled": False},
            "pipeline": {"enabled_steps": ["local_import", "wait", "send"]}, "jobs_dir": "jobs",
        }  # fmt: skip
        (project / "config.yaml").write_text(json.dumps(known))
        started = sluice("pipeline", "start", "config.yaml")
        assert started.code == 0, started.err
        job = project / "jobs" / started.job
        if corrected:
            (job / "import_wait/fixed.ndjson").write_text('{"resourceType":"Patient","id":"only-this"}\n')
            assert sluice("pipeline", "continue", "config.yaml", started.job, "--approve").code == 5
        shown = document(job)
        ran = sluice("pipeline", "continue", "config.yaml", started.job, "--approve", "--comment", "made up")
        assert ran.code == 0, ran.err
        sent = {name: body for name, body in arrived().items() if name.endswith(".ndjson")}
    listed = "".join(f"{hashlib.sha256(body).hexdigest()}  {name}\n" for name, body in sorted(sent.items()))
    assert shown.checksum == hashlib.sha256(listed.encode()).hexdigest()
    assert (shown.tiles.files, shown.tiles.bytes) == (len(sent), sum(map(len, sent.values())))
    assert shown.sections[0].facts.lines == sum(body.count(b"\n") for body in sent.values())
    assert len(sent) == (1 if corrected else 3)
