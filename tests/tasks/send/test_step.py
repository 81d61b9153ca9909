"""Choice of the mode (document 1, services.send.send_as)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.send.step import run
from tasks.shared.errors import DataError, SluiceError
from tasks.shared.step import StepContext
from tests.peers import job
from tests.peers.fhir import DirectLoadJob, observation, serving

NOBODY = "http://127.0.0.1:9"
TRANSFER = {
    "send_as": "transfer_load",
    "url": NOBODY,
    "transfer": {"project_identifier": "p", "organization_identifier": "o"},
}
KEYS = {"access_key_id": "k", "secret_access_key": "s"}
S3 = {"send_as": "s3_upload", "s3": {"bucket": "bucket", "region": "r-1", "endpoint": NOBODY, **KEYS}}


def context(directory: Path, send: dict[str, Any]) -> StepContext:
    return job.context(directory, "send", {"services": {"send": send}}, source=directory / "import")


def test_direct_resource_load_sends(tmp_path: Path) -> None:
    given = DirectLoadJob(tmp_path)
    given.write("a.ndjson", observation("o"))
    with serving() as server:
        result = run(context(tmp_path, {"send_as": "direct_resource_load", "url": server.url}))
    assert result.resources_out == 1
    assert list(server.stored) == ["Observation/o"]


@pytest.mark.parametrize(
    ("send", "reference"),
    [
        ({}, "send-mode"),
        ({"send_as": "direct_resource_load"}, "send-url"),
        (TRANSFER | {"url": None}, "send-url"),
        (TRANSFER | {"transfer": {"organization_identifier": "o"}}, "transfer-identifier"),
        (TRANSFER | {"transfer": {"project_identifier": "p"}}, "transfer-identifier"),
    ],
)
def test_a_missing_mode_url_or_identifier_is_an_error_of_the_configuration(
    tmp_path: Path, send: dict[str, Any], reference: str
) -> None:
    DirectLoadJob(tmp_path).write("a.ndjson", observation("o"))
    with pytest.raises(SluiceError) as caught:
        run(context(tmp_path, send))
    assert caught.value.reference == reference
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("send", [{"send_as": "direct_resource_load", "url": NOBODY}, TRANSFER, S3])
def test_nothing_to_send_is_an_error_before_any_request(tmp_path: Path, send: dict[str, Any]) -> None:
    given = DirectLoadJob(tmp_path)
    given.put(".hidden", b"x")
    given.put("a.ndjson.part", b"{}")
    with pytest.raises(DataError) as caught:
        run(context(tmp_path, send))
    assert caught.value.reference == "send-no-input"
