"""The index: every resource is found at its position, in files of all forms."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployments.sandbox.common.serve import SandboxStartError
from deployments.sandbox.extraction.index import BadLines, ResourceIndex
from tests.conftest import examples
from tests.deployments.sandbox.extraction.conftest import HOSPITAL, ICD, Start, ccdl, criterion, crtdl, patient, write


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


@given(
    names=st.lists(st.from_regex(r"[A-Za-z0-9\-.]{1,12}", fullmatch=True), min_size=1, max_size=8, unique=True),
    text=st.text(max_size=40),
    spaces=st.sampled_from(["", " ", "\t \t"]),
    cuts=st.lists(st.booleans(), min_size=8, max_size=8),
)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_bytes_of_every_resource_are_found_again(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], text: str, spaces: str, cuts: list[bool]
) -> None:
    directory = tmp_path_factory.mktemp("index")
    # Twins in one Bundle, one a prefix of the other: the position must not be that of a neighbour.
    resources = [patient(name, name=[{"text": text}]) for name in names]
    lines: list[str] = []
    for item, alone in zip(resources, cuts, strict=False):
        lines.append(json.dumps(item) if alone else bundle(item, separator=spaces + "," + spaces) + spaces)
    lines.append(bundle(*resources, separator=spaces + "," + spaces))
    data = write(directory / "data", *lines)
    assert contents(made(data, directory)) == {f"Patient/{item['id']}": item for item in resources}


def test_of_two_with_one_name_the_last_one_counts(tmp_path: Path, start: Start) -> None:
    first, last = HOSPITAL[4], HOSPITAL[4] | {"code": {"coding": [{"system": ICD, "code": "J18.9"}]}}
    data = write(tmp_path / "data", *HOSPITAL[:4], first, last)
    client = start(data)
    assert client.cohort(ccdl([criterion("Diagnose", {"system": ICD, "code": "E11.90"})])) == []
    assert client.cohort(ccdl([criterion("Diagnose", {"system": ICD, "code": "J18.9"})])) == ["a"]


def test_consent_audit_files_and_other_names_are_no_data(tmp_path: Path) -> None:
    data = write(tmp_path / "data", *HOSPITAL)
    write(data, patient("hidden"), name="x_consent.ndjson")
    write(data, patient("part"), name="x.ndjson.part")
    write(data, "no json", name="readme.txt")
    assert contents(made(data, tmp_path)) == EXPECTED


@pytest.mark.parametrize(
    "line", ["no json", "[]", "7", '{"id":"x"}', '{"resourceType":7}', '{"resourceType":"Patient","id":7}', "\x00"]
)
def test_a_line_that_is_no_resource_is_named_with_file_and_line(tmp_path: Path, line: str) -> None:
    data = write(tmp_path / "data", patient("a"), line, name="some.ndjson")
    with pytest.raises(SandboxStartError, match=r"Not FHIR resources in JSON: some\.ndjson:2\."):
        made(data, tmp_path)


def test_every_bad_line_of_every_file_is_named(tmp_path: Path) -> None:
    data = write(tmp_path / "data", "no json", patient("a"), "", "{", name="a.ndjson")
    (data / "b.ndjson").write_bytes(b'{"resourceType":"Patient","id":"b","city":"\xff"}\n')
    (data / "c.ndjson.zst").write_bytes(zstandard.compress(f"\n\n{json.dumps(patient('c'))}\n\nx\n".encode()))
    with pytest.raises(SandboxStartError) as caught:
        made(data, tmp_path)
    assert "a.ndjson:1, a.ndjson:4, b.ndjson:1, c.ndjson.zst:5." in str(caught.value)
    assert "--set bad_lines=skip" in str(caught.value)
    write(data, *["x"] * 30, name="a.ndjson")
    with pytest.raises(SandboxStartError, match=r"a\.ndjson:20, and 12 more"):
        made(data, tmp_path)


def test_bad_lines_can_be_left_out_with_a_warning_that_names_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = bundle(patient("x"), 7)
    data = write(tmp_path / "data", patient("a"), "canary", bad, patient("b"), name="some.ndjson")
    index = ResourceIndex(data, tmp_path / "index", BadLines.SKIP)
    index.build()
    assert list(contents(index)) == ["Patient/a", "Patient/b"]  # nothing of a Bundle with a bad entry
    assert [record.getMessage() for record in caplog.records] == [
        "skipped 2 lines or entries that are not FHIR resources in JSON: some.ndjson:2, some.ndjson:3"
    ]
    with pytest.raises(SandboxStartError):  # what was skipped once is not hidden from a strict start
        made(data, tmp_path)


@pytest.mark.parametrize("key", ["", "no id", "x" * 65])
def test_resources_that_nothing_can_name_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    data = write(tmp_path / "data", patient("a"), bundle(patient(key)), name="some.ndjson")
    assert list(contents(made(data, tmp_path))) == ["Patient/a"]
    assert [record.getMessage() for record in caplog.records] == [
        "skipped 1 lines or entries of resources without a usable id: some.ndjson:2"
    ]


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


def test_an_index_that_is_none_is_built_again(tmp_path: Path) -> None:
    data = write(tmp_path / "data", patient("a"))
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "index.sqlite3").write_bytes(b"rubbish" * 1000)
    assert list(contents(made(data, tmp_path))) == ["Patient/a"]


def test_an_empty_directory_is_a_hospital_without_patients(tmp_path: Path, start: Start) -> None:
    (tmp_path / "data").mkdir()
    client = start(tmp_path / "data")
    result = client.extract(crtdl())
    assert result.manifest["output"] == []
    assert result.extension("extractor-job-diagnostics-summary") is None
