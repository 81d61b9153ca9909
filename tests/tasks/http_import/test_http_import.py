"""Import from URLs against a scripted server: names, the check before a start, a list that changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from config import PipelineConfig
from tasks.http_import.step import STEP
from tasks.shared.errors import DataError, NetworkError, ServiceError, SluiceError
from tasks.shared.report import StepReport
from tasks.shared.step import CheckContext, GivenInputs
from tests.conftest import wait_until
from tests.peers import job
from tests.peers.data import as_line, patient
from tests.peers.server import Reply, ScriptedServer, SeenRequest, closed_port

SECRET = "code=canary-of-a-query"
LOG = b'{"exportId":"e1","eventId":"kickoff"}\n'


def patients(*names: str) -> bytes:
    return b"".join(as_line(patient(name)) + b"\n" for name in names)


class Place:
    """A server of files by their path, and a job."""

    def __init__(self, directory: Path) -> None:
        self.job = directory
        self.files: dict[str, Reply] = {}
        self.server = ScriptedServer(self.answer)

    def answer(self, seen: SeenRequest) -> Reply:
        return self.files.get(seen.target.partition("?")[0], Reply(404))

    def serve(self, **files: bytes) -> None:
        """Serve files; ``one__x`` is ``/one/x.ndjson``."""
        self.files = {f"/{name.replace('__', '/')}.ndjson": Reply(200, content) for name, content in files.items()}

    def asked(self, method: str = "GET") -> list[str]:
        return sorted(seen.target for seen in self.server.seen if seen.method == method)

    def configuration(self, *paths: str) -> PipelineConfig:
        urls = [path if ":" in path else self.server.url + path for path in paths]
        return job.configuration({"http_import": {"urls": urls}}, attempts=1)

    def run(self, *paths: str, **more: Any) -> StepReport:
        self.server.seen.clear()
        return STEP.run(job.context(self.job, "http_import", self.configuration(*paths), **more))

    def checked(self, *paths: str, given: str | None = None, **more: Any) -> list[SluiceError]:
        self.server.seen.clear()
        self.check = CheckContext(self.configuration(*paths), GivenInputs(input=given), **more)
        return list(STEP.checks(self.check))

    @property
    def imported(self) -> dict[str, int]:
        """Return how many patients each file has."""
        files = {path.name: zstandard.decompress(path.read_bytes(), 9999) for path in self.job.glob("import/*")}
        return {name.removesuffix(".ndjson.zst"): content.count(b"Patient") for name, content in files.items()}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    with made.server:
        yield made


def test_names_come_from_the_urls_and_no_query_is_kept_or_told(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    packed = zstandard.compress(patients("c", "d", "e"))
    content = {"/1/x.ndjson": patients("a"), "/2/x": patients("a", "b"), "/y.zst": packed, "/": patients(*"abcd")}
    place.files = {path: Reply(200, body) for path, body in content.items()}
    with caplog.at_level(logging.DEBUG):
        report = place.run(f"/1/x.ndjson?{SECRET}", f"/2/x?{SECRET}", "/y.zst", f"/?{SECRET}")
        place.checked(f"/1/x.ndjson?{SECRET}")
    assert place.imported == {"x": 1, "x-2": 2, "y": 3, "download": 4}
    assert (report.files, report.lines_out, report.bytes_in) == (4, 10, sum(map(len, content.values())))
    assert place.server.seen[0].authorization is None
    assert SECRET not in caplog.text + report.model_dump_json()
    assert not any(SECRET.encode() in path.read_bytes() for path in place.job.rglob("*.*") if path.is_file())


def test_another_query_is_another_file(place: Place) -> None:
    place.serve(x=patients("a"))
    place.run("/x.ndjson?version=1")
    place.serve(x=patients("a", "b"))
    place.run("/x.ndjson?version=2")
    assert (place.imported, place.asked()) == ({"x": 2}, ["/x.ndjson?version=2"])


@pytest.mark.parametrize(
    ("reply", "kind", "reference"),
    [
        (Reply(200, b"<!DOCTYPE html><html>Log in"), DataError, "not-json"),
        (Reply(200, patients("a"), {"Content-Type": "text/html"}), ServiceError, "download-media-type"),
        (Reply(200, b"\n"), DataError, "empty-file"), (Reply(200, b'{"a":1}'), DataError, "not-a-resource"),
        (Reply(404), ServiceError, "service-not-found"), (Reply(200, patients("a") + LOG), DataError, "export-log"),
    ],
)  # fmt: skip
def test_what_is_no_ndjson_of_resources_ends_the_step_and_names_the_url(
    place: Place, reply: Reply, kind: type[SluiceError], reference: str
) -> None:
    place.files["/x.ndjson"] = reply
    with pytest.raises(kind) as caught:
        place.run(f"/x.ndjson?{SECRET}")
    assert caught.value.reference == reference
    assert f"{place.server.url}/x.ndjson" in str(caught.value.context)
    assert SECRET not in caught.value.render()
    assert not place.imported


@pytest.mark.parametrize("head", [Reply(200, patients("a")), *map(Reply, (403, 405, 500, 501, 503)), Reply(302)])
def test_each_url_is_asked_with_one_head_and_a_server_that_refuses_it_is_not_asked_again(
    place: Place, head: Reply
) -> None:
    place.files["/x.ndjson"] = place.files["/y.ndjson"] = head
    assert not place.checked("/x.ndjson", "/y.ndjson")
    assert [(seen.method, seen.target) for seen in place.server.seen] == [("HEAD", "/x.ndjson"), ("HEAD", "/y.ndjson")]
    size = len(patients("a")) if head.status == 200 else 0
    assert STEP.space(place.check, 0) == size // 3 * 2
    place.checked("/x.ndjson", online=False)
    assert not place.server.seen


@pytest.mark.parametrize(
    ("urls", "references"),
    [
        ((f"/x?{SECRET}", f"/x?{SECRET}", "/y"), ["url-duplicate"]), ((), ["input-missing"]),
        ((f"/core?{SECRET}", "/a/CORE.ndjson"), ["name-clash"]), (("http://[h/x",), ["url-invalid"]),
        ((f"/gone?{SECRET}", "/x", "/also"), ["url-refused"] * 2), (("http://h:99999/x",), ["url-invalid"]),
        (("http://h:0/x",), ["url-invalid"]), ((f"https://u:{SECRET}@h",), ["url-credentials"]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_urls_is_found_before_there_is_a_job(
    place: Place, urls: tuple[str, ...], references: list[str]
) -> None:
    place.files = {"/x": Reply(200), "/y": Reply(200), "/core": Reply(200)}
    given = urls[0] if len(urls) == 1 else None  # that of the command line; the configuration refuses it itself
    listed = () if given else urls
    found = place.checked(*listed, given=given)
    assert [(error.reference, error.exit_code) for error in found] == [(one, 2) for one in references]
    assert all(SECRET not in error.render() for error in found)
    with pytest.raises(SluiceError):
        place.run(*listed, **({"input": given} if given else {}))
    assert not place.imported


def test_a_directory_is_no_url_and_a_host_that_is_not_there_is_asked_once(place: Place) -> None:
    assert [error.reference for error in place.checked(given="data")] == ["input-is-directory"]
    host = f"http://127.0.0.1:{closed_port()}"
    (found,) = place.checked(f"{host}/x", f"{host}/y")
    assert isinstance(found, NetworkError)


def test_a_finished_file_belongs_to_its_url_whatever_becomes_of_the_list(place: Place) -> None:
    place.serve(one__x=patients("a"), two__x=patients("a", "b"))

    def fails_late(seen: SeenRequest) -> Reply | None:
        if seen.target == "/z.ndjson":
            wait_until(lambda: len(list(place.job.glob(".done/1/*.json"))) == 2)
        return None

    place.server.script = fails_late
    every = ["/one/x.ndjson", "/two/x.ndjson", "/z.ndjson"]
    with pytest.raises(ServiceError):
        place.run(*every)
    assert place.imported == {"x": 1, "x-2": 2}
    place.server.script = None
    place.serve(three__x=patients(*"abcd"), z=patients(*"abc"), log=LOG)
    report = place.run(*every[1:], "/three/x.ndjson", "/log.ndjson")
    assert place.imported == {"x-2": 2, "z": 3, "x": 4}
    assert report.warnings == (
        "removed, because their URLs are no longer in the list: x",
        f"not imported, the log of an export tool: {place.server.url}/log.ndjson",
    )
    assert place.asked() == ["/log.ndjson", "/three/x.ndjson", "/z.ndjson"]
    place.serve(one__x=patients("a"))
    assert not place.checked("/one/x.ndjson", "/three/x.ndjson", job_dir=place.job)
    assert place.asked("HEAD") == ["/one/x.ndjson"]
    assert place.run("/one/x.ndjson", "/three/x.ndjson", "/two/x.ndjson").lines_out == 7
    assert place.imported == {"x-2": 2, "x-3": 1, "x": 4}
    assert place.asked() == ["/one/x.ndjson"]
