"""The index: every resource is found at its position, in files of all forms."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import zstandard

from deployments.sandbox.common.serve import SandboxStartError
from deployments.sandbox.extraction.index import ResourceIndex
from tests.deployments.sandbox.extraction.conftest import HOSPITAL, Start, crtdl, patient, write


def bundle(*resources: object, kind: str = "collection", separator: str = ",") -> str:
    entries = separator.join(f'{{"fullUrl":"x","resource":{json.dumps(item)}}}' for item in resources)
    return f'{{"resourceType":"Bundle","type":"{kind}","entry":[{entries}]}}'


def made(data: Path, tmp_path: Path) -> ResourceIndex:
    index = ResourceIndex(data, tmp_path / "index")
    index.build()
    return index


def contents(index: ResourceIndex) -> dict[str, object]:
    kinds = ("Patient", "Condition", "Medication", "Bundle")
    with index.reader() as reader:
        return {place.key: reader.load(place) for kind in kinds for place in reader.of_type(kind)}


EXPECTED = {f"{item['resourceType']}/{item['id']}": item for item in HOSPITAL}


@pytest.mark.parametrize("form", ["lines", "bundles", "zst", "mixed", "crlf", "no last line end", "bom", "blank lines"])
def test_every_form_of_file_gives_the_same(tmp_path: Path, form: str) -> None:
    lines = [json.dumps(item) for item in HOSPITAL]
    data = tmp_path / "data"
    match form:
        case "lines":
            write(data, *lines)
        case "bundles":
            write(data, bundle(*HOSPITAL[:3], kind="transaction"), bundle(*HOSPITAL[3:], kind="searchset"), bundle())
        case "zst":
            data.mkdir()
            (data / "x.ndjson.zst").write_bytes(zstandard.compress("\n".join(lines).encode()))
        case "mixed":
            write(data, lines[0], bundle(*HOSPITAL[1:4]), name="a.ndjson")
            (data / "b.ndjson.zst").write_bytes(zstandard.compress((bundle(*HOSPITAL[4:]) + "\n").encode()))
        case "crlf":
            write(data, *[line + "\r" for line in lines])
        case "no last line end":
            data.mkdir()
            (data / "x.ndjson").write_text("\n".join(lines))
        case "bom":
            data.mkdir()
            (data / "x.ndjson").write_text("\n".join(lines), encoding="utf-8-sig")
        case "blank lines":
            write(data, "", *lines, "  ")
    assert contents(made(data, tmp_path)) == EXPECTED


@pytest.mark.parametrize(
    "line", ["no json", "[]", "7", '{"id":"x"}', '{"resourceType":7}', '{"resourceType":"Patient","id":7}', "\x00"]
)
def test_a_line_that_is_no_resource_is_named_with_file_and_line(tmp_path: Path, line: str) -> None:
    data = write(tmp_path / "data", patient("a"), line, name="some.ndjson")
    with pytest.raises(SandboxStartError, match=r"Not FHIR resources in JSON: some\.ndjson:2\."):
        made(data, tmp_path)


def test_a_broken_zst_file_is_an_error(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "x.ndjson.zst").write_bytes(zstandard.compress(json.dumps(patient("a")).encode())[:-3])
    with pytest.raises(SandboxStartError, match="cannot be read"):
        made(data, tmp_path)


def test_it_is_built_once_and_again_when_the_data_has_changed(tmp_path: Path) -> None:
    data = write(tmp_path / "data", patient("a"))
    made(data, tmp_path)
    file = tmp_path / "index" / "index.sqlite3"
    before = file.stat().st_ino
    made(data, tmp_path)
    assert file.stat().st_ino == before
    write(data, patient("b"))
    os.utime(data / "data.ndjson", ns=(1, 1))  # same size, another time
    assert list(contents(made(data, tmp_path))) == ["Patient/b"]
    write(data, patient("c"), name="more.ndjson")
    assert list(contents(made(data, tmp_path))) == ["Patient/b", "Patient/c"]


def test_an_empty_directory_is_a_hospital_without_patients(tmp_path: Path, start: Start) -> None:
    (tmp_path / "data").mkdir()
    client = start(tmp_path / "data")
    result = client.extract(crtdl())
    assert result.manifest["output"] == []
    assert result.extension("extractor-job-diagnostics-summary") is None
