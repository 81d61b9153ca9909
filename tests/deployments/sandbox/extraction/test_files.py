"""Result files: HEAD, GET, ranges, types, availability."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.deployments.sandbox.extraction.conftest import Result, Start, crtdl


@pytest.fixture
def result(start: Start, hospital: Path) -> Result:
    return start(hospital).extract(crtdl())


def url(result: Result) -> str:
    return result.manifest["output"][0]["url"]  # type: ignore[no-any-return]


def test_head_tells_length_and_type_without_a_body(result: Result) -> None:
    content = result.client.get(url(result), headers={"accept": "application/fhir+ndjson"})
    head = result.client.head(url(result))
    assert head.status_code == 200
    assert head.content == b""
    assert int(head.headers["content-length"]) == len(content.content) > 0
    assert head.headers["content-type"] == content.headers["content-type"] == "application/fhir+ndjson"
    assert head.headers["accept-ranges"] == "bytes"
    assert head.headers["etag"] == content.headers["etag"]


def test_types_are_those_of_the_contract(result: Result) -> None:
    types = {"job-summary.json": "application/json", "resource-exclusions.csv": "text/csv; charset=utf-8"}
    for name, kind in types.items():
        assert result.client.head(f"/output/{result.job}/reports/{name}").headers["content-type"] == kind


@pytest.mark.parametrize(
    ("wanted", "part"),
    [
        ("bytes=0-0", slice(0, 1)),
        ("bytes=5-", slice(5, None)),
        ("bytes=5-9", slice(5, 10)),
        ("bytes=-7", slice(-7, None)),
        ("bytes=3-99999999", slice(3, None)),
        ("bytes=-99999999", slice(0, None)),
    ],
)
def test_a_range_is_206_with_the_bytes(result: Result, wanted: str, part: slice) -> None:
    whole = result.client.get(url(result)).content
    answer = result.client.get(url(result), headers={"range": wanted})
    assert answer.status_code == 206
    assert answer.content == whole[part]
    first = part.indices(len(whole))[0]
    assert answer.headers["content-range"] == f"bytes {first}-{first + len(answer.content) - 1}/{len(whole)}"


@pytest.mark.parametrize("wanted", ["bytes=99999999-", "bytes=99999999-99999999", "bytes=-0"])
def test_a_range_outside_the_file_is_416(result: Result, wanted: str) -> None:
    answer = result.client.get(url(result), headers={"range": wanted})
    assert answer.status_code == 416
    assert answer.headers["content-range"].endswith(f"*/{len(result.client.get(url(result)).content)}")


@pytest.mark.parametrize(
    "name",
    ["core.ndjson", "other.ndjson", "../../jobs", "..%2f..%2fjobs", ".units/core.json", ""],
)
def test_anything_else_is_404(result: Result, name: str) -> None:
    assert result.client.get(f"/output/{result.job}/{name}").status_code == 404


def test_files_of_unknown_and_deleted_jobs_are_404(result: Result) -> None:
    name = url(result).rpartition("/")[2]
    assert result.client.get(f"/output/{uuid.uuid4()}/{name}").status_code == 404
    result.client.delete(f"/fhir/Task/{result.job}")
    assert result.client.get(url(result)).status_code == 404


def test_files_can_be_made_to_appear_after_some_checks(start: Start, hospital: Path) -> None:
    client = start(hospital, availability_delay=3)
    job = client.submit(crtdl())
    client.reach(job, "COMPLETED")
    path = client.poll(job).json()["output"][0]["url"]
    statuses = [client.head(path).status_code, client.get(path, headers={"range": "bytes=0-0"}).status_code]
    statuses += [client.head(path).status_code, client.head(path).status_code, client.get(path).status_code]
    assert statuses == [404, 404, 404, 200, 200]
    assert client.get(f"/output/{job}/reports/job-summary.json").status_code == 404  # each file for itself
