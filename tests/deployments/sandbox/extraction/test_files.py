"""Result files: HEAD, GET, ranges, types, URLs, availability."""

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


def test_head_get_and_a_range_agree(result: Result) -> None:
    content = result.client.get(url(result), headers={"accept": "application/fhir+ndjson"})
    head = result.client.head(url(result))
    assert (head.status_code, head.content, content.headers["content-type"]) == (200, b"", "application/fhir+ndjson")
    for name in ("content-type", "content-length", "etag"):
        assert head.headers[name] == content.headers[name]
    first = result.client.get(url(result), headers={"range": "bytes=0-0"})
    assert (first.status_code, first.content) == (206, content.content[:1])
    assert result.client.get(url(result), headers={"range": "bytes=99999999-"}).status_code == 416


def test_anything_else_is_404(result: Result) -> None:
    for name in ("core.ndjson", "..%2f..%2fjobs", ".units/core.json", ""):
        assert result.client.get(f"/output/{result.job}/{name}").status_code == 404
    name = url(result).rpartition("/")[2]
    assert result.client.get(f"/output/{uuid.uuid4()}/{name}").status_code == 404
    result.client.delete(f"/fhir/Task/{result.job}")
    assert result.client.get(url(result)).status_code == 404


@pytest.mark.parametrize(("form", "begin"), [("path", "/output/"), ("host", "127.0.0.1:")])
def test_urls_may_be_relative_and_files_appear_after_some_checks(
    start: Start, hospital: Path, form: str, begin: str
) -> None:
    client = start(hospital, result_urls=form, availability_delay=2)
    job = client.submit(crtdl())
    client.reach(job, "COMPLETED")
    given = client.poll(job).json()["output"][0]["url"]
    assert given.startswith(begin)
    path = f"/output/{given.partition('/output/')[2]}"
    statuses = [client.head(path).status_code, client.get(path, headers={"range": "bytes=0-0"}).status_code]
    assert [*statuses, client.head(path).status_code] == [404, 404, 200]
    assert client.get(f"/output/{job}/reports/job-summary.json").status_code == 404  # each file for itself
