"""An extraction server that lies, in one way at a time (documents 1 to 3 §2): what becomes of each lie.

Honest but for one kind of answer; every lie ends the step or the command with an error, or is listed with the reason
why it cannot be noticed or does no harm. ``docs/lies.md`` is made from these tables (``tests/docs/test_lies.py``).
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tasks.extractor.client import ExtractionClient, service_client
from tasks.extractor.extraction import run
from tasks.extractor.task import Priority
from tasks.shared.errors import SluiceError
from tasks.shared.step import StepContext
from tests.peers import job
from tests.peers.client import client
from tests.peers.extraction import (
    OTHER_JOB,
    PatientExtraction,
    RecordingStore,
    SimulatedClock,
    bundles,
    configuration,
    crtdl,
    extraction_server,
)
from tests.peers.lies import Lie
from tests.peers.server import Raw, Reply, SeenRequest
from tests.peers.services import JSON, task

CANARY = "CANARY"
PAGE = f"<!DOCTYPE html><html>{CANARY}</html>"
FILE = bundles("b1", 400)
"""What ``b1.ndjson`` really holds."""
BROKEN = 9000
"""Bytes after which a download breaks off, where the part that follows is asked for."""
MIB = 1 << 20
ANSWER = "extractor-answer"
PART_OF = "source-incomplete"
LARGE = "resource-too-large"
RESULT = "result-unreadable"
FOREIGN = "foreign-patient-in-bundle"
NDJSON = {"Content-Type": "application/fhir+ndjson"}


@dataclass(frozen=True)
class Told:
    """Input of a lie: the request, the honest answer, and the job."""

    seen: SeenRequest
    honest: Reply
    url: str
    job: str

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.honest.body or b"{}"))

    @property
    def text(self) -> str:
        return (self.honest.body or b"").decode()

    @property
    def outputs(self) -> list[dict[str, Any]]:
        return list(self.document["output"])


def location(text: str, **more: Any) -> Callable[[Told], Reply]:
    """Return a kick-off that is answered with this Content-Location."""
    return lambda told: Reply(202, headers={"Content-Location": text.format(url=told.url, job=told.job)}, **more)


SUBMISSIONS: dict[str, Lie] = {
    "no Content-Location": Lie(lambda _: Reply(202), "content-location-missing"),
    "an empty Content-Location": Lie(location(""), "content-location-missing"),
    "a login page with 200": Lie(lambda _: Reply(200, PAGE.encode()), "content-location-missing"),
    "an OperationOutcome of an error with 200": Lie(
        lambda _: Reply(200, b'{"resourceType":"OperationOutcome","issue":[{"severity":"error"}]}', JSON),
        "content-location-missing",
    ),
    "two Content-Locations": Lie(
        lambda told: Raw(
            f"HTTP/1.1 202 Accepted\r\nContent-Location: /fhir/__status/{told.job}\r\n"
            f"Content-Location: /fhir/__status/{OTHER_JOB}\r\nContent-Length: 0\r\n\r\n".encode()
        ),
        ANSWER,
    ),
    "two URLs in one Content-Location": Lie(
        location("{url}/fhir/__status/{job}, {url}/fhir/__status/" + OTHER_JOB), ANSWER
    ),
    "a Content-Location that ends before the job": Lie(location("/fhir/__status/"), ANSWER),
    "its own URL as Content-Location": Lie(location("{url}/fhir/$extract-data"), ANSWER),
    "a job id that is no UUID": Lie(location("/fhir/__status/17"), ANSWER),
    "a job id with something behind it": Lie(location("/fhir/__status/{job}.json"), ANSWER),
    "a Content-Location that is no HTTP URL": Lie(location("file:///fhir/__status/{job}"), "result-url"),
    "a Content-Location without a host": Lie(location("http:///fhir/__status/{job}"), "result-url"),
    "a Content-Location with a port that is none": Lie(location("http://h:99999/fhir/__status/{job}"), "result-url"),
    "a redirect": Lie(
        lambda told: Reply(307, headers={"Location": f"{told.url}/fhir/$extract-data/"}), "redirect-refused"
    ),
    "a Content-Length that is too long": Lie(
        lambda told: Reply(202, b"{}", {"Content-Location": f"/fhir/__status/{told.job}"}, length=9, cut=2),
        "submission-unanswered",
    ),
    "a body without end": Lie(location("/fhir/__status/{job}", body=b" " * (80 << 20)), "answer-too-large"),
    "a Content-Encoding that was not requested": Lie(
        lambda told: Reply(202, b"x", {"Content-Location": f"/fhir/__status/{told.job}", "Content-Encoding": "x-odd"}),
        "answer-encoding",
    ),
    "the job of another query": Lie(location(f"/fhir/__status/{OTHER_JOB}"), RESULT),
    "a page beside the Content-Location": Lie(
        location("/fhir/__status/{job}", body=PAGE.encode()),
        None,
        "any 2xx with a Content-Location is a success, and nothing of the body is read",
    ),
    "the URL of another host": Lie(
        lambda told: Reply(
            202, headers={"Content-Location": f"{told.url.replace('127.0.0.1', 'localhost')}/fhir/__status/{told.job}"}
        ),
        None,
        "a server may be known under two names; it is asked without credentials, and its result must be of the job",
    ),
}


def polled(status: int, body: str = "", **headers: str) -> Callable[[Told], Reply]:
    return lambda told: Reply(
        status, body.encode(), {name: text.format(url=told.url) for name, text in headers.items()}
    )


STATUSES: dict[str, Lie] = {
    "201": Lie(polled(201), "service-unexpected"),
    "203 of a proxy": Lie(polled(203), "service-unexpected"),
    "204": Lie(polled(204), "service-unexpected"),
    "206": Lie(polled(206), "service-unexpected"),
    "304": Lie(polled(304), "service-unexpected"),
    "a redirect to another host": Lie(
        lambda told: Reply(302, headers={"Location": told.url.replace("127.0.0.1", "localhost")}),
        "redirect-cross-origin",
    ),
    "a redirect in a circle": Lie(lambda told: Reply(302, headers={"Location": told.seen.target}), "redirect-loop"),
    "400": Lie(polled(400, PAGE), "service-refused"),
    "404 for ever, of a job that runs": Lie(polled(404), "dead-handle"),
    "410 for ever, of a job that runs": Lie(polled(410), "dead-handle"),
    "500 of a job that runs": Lie(polled(500, PAGE), "extraction-failed"),
    "503 for ever": Lie(polled(503), "extraction-timeout"),
    "no answer for ever": Lie(lambda _: Reply(reset=True), "extraction-timeout"),
    "a page with 202": Lie(
        lambda told: Reply(202, PAGE.encode()) if told.honest.status == 202 else told.honest,
        None,
        "a 202 means that the job is running; the rest of the answer is only shown, if it has a known form",
    ),
    "1,000 % done": Lie(
        lambda told: Reply(202, b'{"resourceType":"OperationOutcome","issue":[{"severity":"information",'
                                b'"code":"informational","diagnostics":"batch progress 1000 %"}]}')
        if told.honest.status == 202 else told.honest,
        None,
        "the reported progress is only shown; more than 100 % is shown as 100 %",
    ),
}  # fmt: skip


def with_(**changes: Any) -> Callable[[Told], Any]:
    """Return the manifest with something else at its top."""
    return lambda told: told.document | changes


def first(**changes: Any) -> Callable[[Told], Any]:
    """Return the manifest with something else in its first output."""
    return lambda told: told.document | {"output": [told.outputs[0] | changes, *told.outputs[1:]]}


def more(**entry: Any) -> Callable[[Told], Any]:
    """Return the manifest with another output."""
    return lambda told: (
        told.document
        | {"output": [*told.outputs, {name: text.format(url=told.url, job=told.job) for name, text in entry.items()}]}
    )


def about(**changes: Any) -> Callable[[Told], Any]:
    """Return the manifest with something else in its job extension."""

    def change_document(told: Told) -> Any:
        (extension,) = told.document["extension"]
        return told.document | {"extension": [extension | {"valueObject": extension["valueObject"] | changes}]}

    return change_document


def counted(patients: int, but: str = "") -> Callable[[Told], Any]:
    """Return the manifest with the server's count of patients, but one file left out."""

    def change_document(told: Told) -> Any:
        summary = {"url": "x/torch-job-diagnostics-summary", "valueObject": {"Num-Final-Patients": patients}}
        outputs = [output for output in told.outputs if not output["url"].endswith(but or "nothing")]
        return told.document | {"output": outputs, "extension": [*told.document["extension"], summary]}

    return change_document


RESULTS: dict[str, Lie] = {
    # What it is
    "HTML": Lie(lambda _: PAGE, RESULT),
    "nothing": Lie(lambda _: "", RESULT),
    "half of the JSON": Lie(lambda told: told.text[:-20], RESULT),
    "two documents": Lie(lambda told: told.text * 2, RESULT),
    "a JSON list": Lie(lambda told: [told.document], RESULT),
    "null": Lie(lambda _: None, RESULT),
    "an OperationOutcome": Lie(lambda _: {"resourceType": "OperationOutcome", "issue": []}, RESULT),
    "a Bundle": Lie(lambda _: {"resourceType": "Bundle", "entry": []}, RESULT),
    "a Task": Lie(lambda told: task(told.job), RESULT),
    "neither output nor error": Lie(lambda _: {"transactionTime": "now"}, RESULT),
    "text/html by its header": Lie(lambda told: told.document, RESULT, headers={"Content-Type": "text/html"}),
    "an empty Content-Type": Lie(lambda told: told.document, RESULT, headers={"Content-Type": ""}),
    "a byte order mark": Lie(lambda told: "\ufeff" + told.text, RESULT),
    "UTF-16": Lie(lambda told: told.text.encode("utf-16"), RESULT),
    "no UTF-8": Lie(lambda told: told.text.encode().replace(b"NDJSON", b"\xff\xfe", 1), RESULT),
    "nested too deeply": Lie(lambda told: told.text[:-1] + ',"x":' + "[" * 9000 + "]" * 9000 + "}", RESULT),
    "a Content-Length that is too long": Lie(lambda told: told.document, "extraction-timeout", cut=True),
    "gzip with a cut trailer": Lie(
        lambda told: gzip.compress(told.text.encode())[:-4], "extraction-timeout", headers={"Content-Encoding": "gzip"}
    ),
    "gzip with a byte behind it": Lie(
        lambda told: gzip.compress(told.text.encode()) + b"x", "extraction-timeout",
        headers={"Content-Encoding": "gzip"},
    ),
    # Keys that stand twice
    "output twice": Lie(lambda told: told.text[:-1] + ',"output":[]}', RESULT),
    "output twice, once escaped": Lie(lambda told: '{"\\u006futput":[],' + told.text[1:], RESULT),
    "url twice in an output": Lie(lambda told: told.text.replace('"url":', '"url":"/out/x.ndjson","url":', 1), RESULT),
    "type twice in an output": Lie(lambda told: told.text.replace('"type":', '"type":"Patient","type":', 1), RESULT),
    # Outputs
    "output is an object": Lie(lambda told: told.document | {"output": told.outputs[0]}, RESULT),
    "output is a text": Lie(with_(output="/out/b1.ndjson"), RESULT),
    "an output that is null": Lie(lambda told: told.document | {"output": [*told.outputs, None]}, RESULT),
    "an output that is a text": Lie(lambda told: told.document | {"output": ["/out/b1.ndjson"]}, RESULT),
    "an output without a URL": Lie(lambda told: told.document | {"output": [{"type": "NDJSON Bundle"}]}, RESULT),
    "a URL that is null": Lie(first(url=None), RESULT),
    "a URL that is a number": Lie(first(url=7), RESULT),
    "a URL that is a list": Lie(first(url=["/out/b1.ndjson"]), RESULT),
    "an empty URL": Lie(first(url=""), RESULT),
    "a file twice": Lie(lambda told: told.document | {"output": [*told.outputs, told.outputs[0]]}, RESULT),
    "a file twice, once absolute": Lie(
        lambda told: told.document | {"output": [*told.outputs, {"url": told.url + told.outputs[0]["url"]}]}, RESULT
    ),
    "a file twice, once with a fragment": Lie(
        lambda told: told.document | {"output": [*told.outputs, {"url": told.outputs[0]["url"] + "#2"}]}, RESULT
    ),
    "a file twice, once as HTTP://": Lie(
        lambda told: told.document
        | {"output": [*told.outputs, {"url": "HTTP" + told.url[4:] + told.outputs[0]["url"]}]},
        RESULT,
    ),
    "a file twice, once with a query": Lie(
        lambda told: told.document | {"output": [*told.outputs, {"url": told.outputs[0]["url"] + "?x=1"}]},
        None,
        "the server interprets the query, so two URLs may be two files",
    ),
    "a type that is a media type": Lie(first(type="application/fhir+ndjson"), RESULT),
    "a type that is empty": Lie(first(type=""), RESULT),
    "a type that is a number": Lie(first(type=7), RESULT),
    "Patient as type of Bundles": Lie(first(type="Patient"), "resource-type-differs"),
    "a file of the server's disk": Lie(first(url="file:///etc/passwd"), "result-url"),
    "a URL of FTP": Lie(first(url="ftp://127.0.0.1/b1.ndjson"), "result-url"),
    "a URL with a line break": Lie(first(url="/out/b1\r\nX: y.ndjson"), "result-url"),
    "a port that is none": Lie(first(url="http://127.0.0.1:99999/b1.ndjson"), "result-url"),
    "a script as URL": Lie(first(url="javascript:alert(1)"), "file-not-available"),
    "a name that leads out of the directory": Lie(
        more(url="/out/{job}/..%2f..%2fb1.ndjson"), None, "its letters and _ become the name of the file in import/"
    ),
    "a file that is not there": Lie(more(url="/out/{job}/gone.ndjson"), "file-not-available"),
    "a report as output": Lie(more(url="/out/{job}/job-summary.json"), "not-a-resource"),
    "a table as output": Lie(more(url="/out/{job}/patient-exclusions.csv"), "not-object"),
    "a file of OperationOutcomes as output": Lie(
        more(url="/out/{job}/error.json", type="NDJSON Bundle"), "resource-type-differs"
    ),
    "no output": Lie(with_(output=[]), "no-matching-data"),
    "output is null": Lie(with_(output=None), "no-matching-data"),
    "no output, and errors": Lie(
        lambda told: told.document | {"output": [], "error": [{"url": f"/out/{told.job}/error.json"}]},
        "extraction-errors",
    ),
    "Parameters with an output without a URL": Lie(
        lambda _: {"resourceType": "Parameters", "parameter": [{"name": "output", "part": [{"name": "type"}]}]}, RESULT
    ),
    "Parameters with a file twice": Lie(
        lambda told: {"resourceType": "Parameters", "parameter": [
            {"name": "output", "part": [{"name": "url", "valueUrl": told.outputs[0]["url"]}]}] * 2},
        RESULT,
    ),
    "Parameters without an output": Lie(lambda _: {"resourceType": "Parameters"}, "no-matching-data"),
    # Of what
    "the result of another job": Lie(about(id=OTHER_JOB), RESULT),
    "the result of a job that runs": Lie(about(status="RUNNING_PROCESS_BATCH"), RESULT),
    "the result of a job that was cancelled": Lie(about(status="CANCELLED"), RESULT),
    "the result of another cohort": Lie(
        about(parameters={"crtdl": crtdl(cohortDefinition={"version": "2", "inclusionCriteria": []}), "patient": []}),
        RESULT,
    ),
    "the result of other patients": Lie(about(parameters={"crtdl": crtdl(), "patient": ["p1"]}), RESULT),
    "requiresAccessToken is a text": Lie(with_(requiresAccessToken="no"), RESULT),
    "requiresAccessToken for another host": Lie(
        lambda told: told.document | {"requiresAccessToken": True, "output": [
            output | {"url": told.url.replace("127.0.0.1", "localhost") + output["url"]} for output in told.outputs]},
        None,
        "by contract, the hosts of the files then receive the credentials, but never over http after https",
    ),
    "a count of lines that is too high": Lie(first(count=99), PART_OF),
    "a count of lines that is too low": Lie(first(count=0), PART_OF),
    "a count that is a text": Lie(first(count="1"), RESULT),
    "a count below zero": Lie(first(count=-1), RESULT),
    "a list of deleted resources": Lie(
        with_(deleted=[{"type": "Bundle", "url": "/out/deleted.ndjson"}]), None, "gives a warning: how many files"
    ),
    "a file less than the patients it counts": Lie(
        counted(60, but="b3.ndjson"), None, "gives a warning: the server's count of patients and that of the Bundles"
    ),
    "a count of patients that is wrong": Lie(
        counted(10_000), None, "gives a warning: the server's count of patients and that of the Bundles"
    ),
    "a file less, and no count": Lie(
        lambda told: told.document | {"output": told.outputs[:-1]}, None, "nothing else says which files there are"
    ),
    "files of another job": Lie(
        lambda told: told.document | {"output": [
            output | {"url": output["url"].replace(told.job, OTHER_JOB)} for output in told.outputs]},
        None,
        "the server chooses the URLs of files, and no file names its job",
    ),
    "a consent audit file as output": Lie(
        more(url="/out/{job}/b1_consent.ndjson"), None, "gives a warning: the name; it is imported as data"
    ),
    "two core files": Lie(
        more(url="/out/other/core.ndjson"), None, "gives a warning: only the first comes before all others"
    ),
    "errors beside the files": Lie(
        lambda told: told.document | {"error": [{"url": f"/out/{told.job}/error.json"}]},
        None,
        "gives a warning: how many; some servers always list one",
    ),
}  # fmt: skip


def line(text: str) -> Callable[[Told], bytes]:
    """Return the file with this line in its middle."""
    return lambda _: b"".join([*FILE.splitlines(keepends=True)[:200], text.encode() + b"\n", FILE[:0]]) + FILE


def of_patient(subject: str, base: str = "", **more: Any) -> str:
    """Return a Bundle of the patient p, with an Observation of a patient."""
    one = {"resourceType": "Observation", "id": "o", "subject": {"reference": f"{base}Patient/{subject}"}, **more}
    entries = [{"resource": {"resourceType": "Patient", "id": "p"}}, {"resource": one}]
    return json.dumps({"resourceType": "Bundle", "id": "b", "type": "transaction", "entry": entries})


def archive(_: Told) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("b1.ndjson", FILE)
    return buffer.getvalue()


def damaged(_: Told) -> bytes:
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(FILE))
    packed[-2] ^= 0xFF  # in the checksum
    return bytes(packed)


def chunked(*pieces: bytes, end: bool) -> Callable[[Told], Raw]:
    parts = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return lambda _: Raw(head + parts + (b"0\r\n\r\n" if end else b""))


def raw(*headers: str, body: bytes = FILE) -> Callable[[Told], Raw]:
    return lambda _: Raw("\r\n".join(["HTTP/1.1 200 OK", *headers, "", ""]).encode() + body)


def search(matches: int, *modes: str, **members: Any) -> Callable[[Told], bytes]:
    """Return the file with a searchset that has so many matches, and a resource of each of these modes."""
    found = [{"resource": {"resourceType": "Basic"}} for _ in range(matches)]
    more = [{"resource": {"resourceType": "Basic"}, "search": {"mode": mode}} for mode in modes]
    return line(json.dumps({"resourceType": "Bundle", "type": "searchset", "entry": found + more} | members))


def outcome(*severities: str) -> Callable[[Told], bytes]:
    """Return the file with a Bundle that holds an OperationOutcome with issues of these severities."""
    issues = [{"severity": severity, "code": "incomplete", "diagnostics": CANARY} for severity in severities]
    resource = {"resourceType": "OperationOutcome", "issue": issues}
    entries = [{"resource": {"resourceType": "Basic"}}, {"resource": resource, "search": {"mode": "outcome"}}]
    return line(json.dumps({"resourceType": "Bundle", "type": "searchset", "entry": entries}))


HALF = FILE[: FILE.index(b"\n", len(FILE) // 2) + 1]
"""Whole lines of the file."""

CONTENTS: dict[str, Lie] = {
    # What it is
    "HTML": Lie(lambda _: PAGE, "not-json"),
    "an error as JSON": Lie(lambda _: '{"error":"no session"}\n', "not-a-resource"),
    "an error as JSON in the middle": Lie(line('{"error":"disk full"}'), "not-a-resource"),
    "an OperationOutcome": Lie(
        lambda _: '{"resourceType":"OperationOutcome","issue":[]}\n', "resource-type-differs"
    ),
    "an OperationOutcome in the middle": Lie(line('{"resourceType":"OperationOutcome"}'), "resource-type-differs"),
    "Patients instead of Bundles": Lie(lambda _: '{"resourceType":"Patient","id":"x"}\n', "resource-type-differs"),
    "a JSON array": Lie(lambda _: "[" + FILE.decode().replace("\n", ",")[:-1] + "]", "not-object"),
    "a document over several lines": Lie(lambda _: json.dumps(json.loads(FILE.splitlines()[0]), indent=1), "not-json"),
    "a text in the middle": Lie(line('"Bundle"'), "not-object"),
    "a number in the middle": Lie(line("7"), "not-object"),
    "null in the middle": Lie(line("null"), "not-object"),
    "a list in the middle": Lie(line("[]"), "not-object"),
    "an empty object in the middle": Lie(line("{}"), "not-a-resource"),
    "a resourceType that is a number": Lie(line('{"resourceType":7}'), "not-a-resource"),
    "a resourceType that is null": Lie(line('{"resourceType":null}'), "not-a-resource"),
    "a resourceType that is no name": Lie(line('{"resourceType":"a b"}'), "resource-type-differs"),
    "half a line": Lie(line('{"resourceType":"Bundle","entry":[{"fullUrl":"x'), "not-json"),
    "half a last line": Lie(lambda _: FILE[:-20], "not-json"),
    "two Bundles on a line": Lie(lambda _: FILE.replace(b"\n", b"", 1), "not-json"),
    "zeros at the end": Lie(lambda _: FILE + b"\0" * 4096, "not-json"),
    "zeros in the middle": Lie(line("\0\0\0"), "not-json"),
    "a zero in a text": Lie(line('{"resourceType":"Bundle","id":"\0"}'), "not-json"),
    "no UTF-8": Lie(lambda _: FILE.replace(b"transaction", b"transacti\xff\xfe", 1), "not-utf8"),
    "UTF-16": Lie(lambda _: FILE.decode().encode("utf-16"), "not-utf8"),
    "a byte order mark in the middle": Lie(line("\ufeff{}"), "not-json"),
    "NaN": Lie(line('{"resourceType":"Bundle","total":NaN}'), "not-json"),
    "nothing": Lie(lambda _: "", "empty-file"),
    "blank lines": Lie(lambda _: "\n\r\n \n", "empty-file"),
    "another file's lines": Lie(lambda _: bundles("b2", 20), None, "no server lists the Bundles of a file"),
    "resourceType twice": Lie(
        line('{"resourceType":"Patient","resourceType":"Bundle"}'),
        None,
        "every step that reads the line checks for it (`repeated-key`)",
    ),
    # Patients
    "a resource of another patient in a Bundle": Lie(line(of_patient("q")), FOREIGN),
    "a resource of another patient by its URL": Lie(line(of_patient("q", "http://x.example/fhir/")), FOREIGN),
    "a contained resource of another patient": Lie(
        line(of_patient("p", contained=[{"resourceType": "Consent", "patient": {"reference": "Patient/q"}}])), FOREIGN
    ),
    # Packed
    "gzip": Lie(lambda _: gzip.compress(FILE), "not-json"),
    "a zip": Lie(archive, "not-json"),
    "half of the zstd": Lie(lambda _: zstandard.compress(FILE)[:-50], "zst-truncated"),
    "damaged zstd": Lie(damaged, "zst-corrupt"),
    "zstd without its checksum": Lie(
        lambda _: zstandard.ZstdCompressor(write_checksum=True).compress(FILE)[:-4], "zst-truncated"
    ),
    "zstd with a byte behind it": Lie(lambda _: zstandard.compress(FILE) + b"x", "zst-corrupt"),
    "zstd with zeros behind it": Lie(lambda _: zstandard.compress(FILE) + b"\0" * 512, "zst-corrupt"),
    "zstd with the beginning of another frame": Lie(
        lambda _: zstandard.compress(FILE) + zstandard.compress(FILE)[:40], "zst-truncated"
    ),
    "zstd in zstd": Lie(lambda _: zstandard.compress(zstandard.compress(FILE)), "not-json"),
    "zstd with a text behind it": Lie(lambda _: zstandard.compress(FILE) + b"and more", "zst-corrupt"),
    "zstd of nothing": Lie(lambda _: zstandard.compress(b""), "empty-file"),
    # Of a source that could not give everything
    "a page of a search": Lie(search(2, total=2, link=[{"relation": "next", "url": "http://x.example/2"}]), PART_OF),
    "fewer matches than the total of a search": Lie(search(2, total=3), PART_OF),
    "fewer matches than the total, beside included resources": Lie(search(2, "include", total=3), PART_OF),
    "the number of a search without its matches": Lie(search(0, total=3), PART_OF),
    "an OperationOutcome of an error among the entries": Lie(outcome("error"), "source-error"),
    "a fatal OperationOutcome among the entries": Lie(outcome("information", "fatal"), "source-error"),
    "an OperationOutcome of a warning among the entries": Lie(outcome("warning"), None, "gives a warning: how many"),
    "deletions among the entries": Lie(
        line('{"resourceType":"Bundle","entry":[{"request":{"method":"DELETE","url":"Patient/x"}}]}'), None,
        "gives a warning: how many",
    ),
    # Larger than what a site takes (1 MiB here)
    "a resource without end": Lie(line(f'{{"resourceType":"Bundle","id":"{"x" * MIB}"}}'), LARGE),
    "a resource without end, packed": Lie(
        lambda told: zstandard.compress(line(f'{{"resourceType":"Bundle","id":"{"0" * 9 * MIB}"}}')(told)), LARGE
    ),
    "an entry without end": Lie(
        lambda told: zstandard.compress(line(json.dumps(
            {"resourceType": "Bundle", "entry": [{"resource": {"resourceType": "Basic", "id": "0" * 9 * MIB}}]}
        ))(told)),
        LARGE,
    ),
    "blanks without end": Lie(lambda _: zstandard.compress(FILE + b" " * 9 * MIB), LARGE),
}  # fmt: skip
"""What a file holds, wherever it comes from."""

FILES: dict[str, Lie] = {
    **CONTENTS,
    # HTTP
    "a login page behind a redirect": Lie(lambda _: Reply(302, headers={"Location": "/login"}), "not-json"),
    "a redirect in a circle": Lie(
        lambda told: Reply(302, headers={"Location": told.seen.target}), "redirect-loop"
    ),
    "a redirect to no HTTP URL": Lie(lambda _: Reply(302, headers={"Location": "file:///b1"}), "redirect-invalid"),
    "gzip by its Content-Encoding": Lie(
        lambda _: gzip.compress(FILE), "download-encoding", headers={"Content-Encoding": "gzip"}
    ),
    "gzip by its Content-Encoding alone": Lie(
        lambda _: FILE, "download-encoding", headers={"Content-Encoding": "gzip"}
    ),
    "zstd by its Content-Encoding alone": Lie(
        lambda _: FILE, "download-encoding", headers={"Content-Encoding": "zstd"}
    ),
    "text/html by its header": Lie(lambda _: FILE, "download-media-type", headers={"Content-Type": "text/html"}),
    "XML by its header": Lie(
        lambda _: FILE, "download-media-type", headers={"Content-Type": "application/fhir+xml; charset=utf-8"}
    ),
    "a Content-Length that is too long": Lie(lambda _: FILE, "connection-broken", cut=True),
    "a Content-Length that ends within a line": Lie(raw(f"Content-Length: {len(HALF) - 9}"), "not-json"),
    "a Content-Length that ends with a line": Lie(
        raw(f"Content-Length: {len(HALF)}"), None, "bytes after its end are not part of the answer (RFC 9112)"
    ),
    "two Content-Lengths": Lie(raw(f"Content-Length: {len(FILE)}", "Content-Length: 9"), "connection-broken"),
    "a Content-Length that is no number": Lie(raw("Content-Length: all"), "connection-broken"),
    "chunks without an end": Lie(chunked(HALF, end=False), "connection-broken"),
    "the connection closed after half of the lines, no length": Lie(
        raw("Connection: close", body=HALF), None,
        "without a length and without chunks the end of the connection is that of the file; the server's count of "
        "patients, if it gives one, is compared (a warning)",
    ),
    "chunks that end after half of the lines": Lie(
        chunked(HALF, end=True), None,
        "an answer that ends well-formed is whole; the server's count of patients, if it gives one, is compared (a "
        "warning)",
    ),
    "201": Lie(lambda _: FILE, "download-status", status=201),
    "202": Lie(lambda _: FILE, "download-status", status=202),
    "203 of a proxy": Lie(lambda _: FILE, "download-status", status=203),
    "204": Lie(lambda _: "", "download-status", status=204),
    "206 that was not requested": Lie(
        lambda _: HALF, "download-status", status=206,
        headers={"Content-Range": f"bytes 0-{len(HALF) - 1}/{len(FILE)}"},
    ),
}  # fmt: skip


def part(first: int, last: int, total: int | str = len(FILE), *, sent: int | None = None, **headers: str) -> Lie:
    """Return the lie about a part: its stated range, and its real end."""
    body = FILE[BROKEN : last + 1 if sent is None else sent]
    more = {name.replace("_", "-"): text for name, text in headers.items()}
    told = {"ETag": '"v1"', "Content-Range": f"bytes {first}-{last}/{total}"} | more
    return Lie(lambda _: Reply(206, body, told), "range-mismatch")


END = len(FILE) - 1
PARTS: dict[str, Lie] = {
    "a part from the beginning": part(0, END),
    "a part from a byte too late": part(BROKEN + 1, END),
    "a part of a longer file": part(BROKEN, END, len(FILE) + 5),
    "a part of a shorter file": part(BROKEN, END, len(FILE) - 5),
    "a part that ends before it begins": part(BROKEN, BROKEN - 1),
    "a part that ends behind the end": part(BROKEN, END + 5),
    "a part in lines": Lie(
        lambda _: Reply(206, FILE[BROKEN:], {"Content-Range": "lines 1-2/3", "ETag": '"v1"'}), "range-mismatch"
    ),
    "a part without Content-Range": Lie(lambda _: Reply(206, FILE[BROKEN:], {"ETag": '"v1"'}), "range-mismatch"),
    "a part with another ETag": part(BROKEN, END, ETag='"v2"'),
    "a part with another Last-Modified": part(BROKEN, END, Last_Modified="Sun, 22 Nov 2026 22:00:00 GMT"),
    "several parts": Lie(
        lambda _: Reply(206, b"--x\r\n\r\n", {"Content-Type": "multipart/byteranges; boundary=x"}), "range-mismatch"
    ),
    "416": Lie(lambda _: Reply(416, b"", {"Content-Range": f"bytes */{len(FILE)}"}), "range-mismatch"),
    "a part with fewer bytes than it says": Lie(part(BROKEN, END, sent=END - 100).tell, "range-mismatch"),
    "a part with more bytes than it says": Lie(part(BROKEN, END - 500, sent=END + 1).tell, "connection-broken"),
    "a part with a page": Lie(lambda _: Reply(200, PAGE.encode()), "not-json"),
}


def answers(**changes: Any) -> Callable[[Told], Any]:
    """Return the Task with something else in it."""
    return lambda told: told.document | changes


Command = Callable[[ExtractionClient, str], Any]
COMMANDS: dict[str, tuple[str, Command]] = {
    "show": ("GET", lambda client, job_id: client.task(job_id)),
    "pause": ("POST", lambda client, job_id: client.change(job_id, "pause")),
    "prioritize, what it reads": ("GET", lambda client, job_id: client.prioritize(job_id, Priority.HIGH)),
    "prioritize, what it writes": ("PUT", lambda client, job_id: client.prioritize(job_id, Priority.HIGH)),
    "preview": ("POST", lambda client, _: client.evaluate_cohort(b"{}")),
}


def cohort(*references: Any) -> Callable[[Told], Any]:
    return lambda _: {"resourceType": "List", "entry": [{"item": {"reference": one}} for one in references]}


TASKS: dict[str, tuple[str, Lie]] = {
    "the Task of another job": ("show", Lie(answers(id=OTHER_JOB), ANSWER)),
    "a Task without an id": ("show", Lie(answers(id=None), ANSWER)),
    "a Bundle with the Task": (
        "show", Lie(lambda told: {"resourceType": "Bundle", "entry": [{"resource": told.document}]}, ANSWER)
    ),
    "HTML": ("show", Lie(lambda _: PAGE, ANSWER)),
    "text/html by its header": ("show", Lie(answers(), ANSWER, headers={"Content-Type": "text/html"})),
    "id twice": ("show", Lie(lambda told: f'{{"id":"{OTHER_JOB}",' + told.text[1:], ANSWER)),
    "the Task of another job to pause": ("pause", Lie(answers(id=OTHER_JOB), ANSWER)),
    "a page to pause": ("pause", Lie(lambda _: PAGE, ANSWER)),
    "the Task of another job before a change": ("prioritize, what it reads", Lie(answers(id=OTHER_JOB), ANSWER)),
    "a Task without a version before a change": ("prioritize, what it reads", Lie(answers(meta={}), ANSWER)),
    "the Task of another job after a change": ("prioritize, what it writes", Lie(answers(id=OTHER_JOB), ANSWER)),
    "the old priority after a change": (
        "prioritize, what it writes", Lie(answers(priority="routine"), ANSWER)
    ),
    "412 for ever": ("prioritize, what it writes", Lie(lambda _: Reply(412), "service-refused")),
    "cohort: a Bundle": ("preview", Lie(lambda _: {"resourceType": "Bundle", "entry": []}, ANSWER)),
    "cohort: a JSON list": ("preview", Lie(lambda _: ["p1", "p2"], ANSWER)),
    "cohort: HTML": ("preview", Lie(lambda _: PAGE, ANSWER)),
    "cohort: text/html by its header": (
        "preview", Lie(cohort("Patient/p1"), ANSWER, headers={"Content-Type": "text/html"})
    ),
    "cohort: a patient twice": ("preview", Lie(cohort("Patient/p1", "Patient/p2", "Patient/p1"), ANSWER)),
    "cohort: a group": ("preview", Lie(cohort("Patient/p1", "Group/g1"), ANSWER)),
    "cohort: an id alone": ("preview", Lie(cohort("p1"), ANSWER)),
    "cohort: a patient without an id": ("preview", Lie(cohort("Patient/"), ANSWER)),
    "cohort: a whole URL": ("preview", Lie(cohort("https://torch.example/fhir/Patient/p1"), ANSWER)),
    "cohort: a version of a patient": ("preview", Lie(cohort("Patient/p1/_history/2"), ANSWER)),
    "cohort: an id that is none": ("preview", Lie(cohort(f"Patient/{CANARY} x"), ANSWER)),
    "cohort: a reference that is a number": ("preview", Lie(cohort(7), ANSWER)),
    "cohort: an entry without an item": ("preview", Lie(lambda _: {"resourceType": "List", "entry": [{}]}, ANSWER)),
    "cohort: entry is null": ("preview", Lie(lambda _: {"resourceType": "List", "entry": None}, ANSWER)),
    "cohort: entry twice": ("preview", Lie(lambda told: told.text[:-1] + ',"entry":[]}', ANSWER)),
    "cohort: other patients": (
        "preview", Lie(cohort("Patient/x"), None, "the server decides who is in the cohort; no step uses this list")
    ),
}  # fmt: skip


def reports(name: str) -> list[dict[str, str]]:
    return [{"url": "x/torch-patient-exclusions", "valueUrl": f"/reports/{name}"}]


COMPANIONS: dict[str, Lie] = {
    "a page as report": Lie(
        lambda _: Reply(200, PAGE.encode(), {"Content-Type": "text/html"}), None, "gives a warning"
    ),
    "a part as report": Lie(lambda _: Reply(206, b'"Batch-ID"'), None, "gives a warning"),
    "a packed report": Lie(
        lambda _: Reply(200, gzip.compress(b'"Batch-ID"'), {"Content-Encoding": "gzip"}), None, "gives a warning"
    ),
    "a report that is cut": Lie(lambda _: Reply(200, b'"Batch-ID"', length=99, cut=10), None, "gives a warning"),
    "a page as consent audit": Lie(lambda _: PAGE, None, "gives a warning"),
    "Patients as consent audit": Lie(lambda _: '{"resourceType":"Patient"}\n', None, "gives a warning"),
    "the Task of another job, where audits are looked for": Lie(
        lambda told: told.document | {"id": OTHER_JOB}, None, "gives a warning"
    ),
    "counts that are wrong in a report": Lie(
        lambda _: '"Batch-ID"\n',
        None,
        "reports are kept for a person; the step only reads whose resources lack consent, and only if this agrees "
        "with the result",
    ),
}
"""About reports, and consent audit files where the name says so."""

LIES: dict[str, Lie] = {
    **{f"kick-off: {name}": lie for name, lie in SUBMISSIONS.items()},
    **{f"status: {name}": lie for name, lie in STATUSES.items()},
    **{f"result: {name}": lie for name, lie in RESULTS.items()},
    **{f"file: {name}": lie for name, lie in FILES.items()},
    **{f"rest of a file: {name}": lie for name, lie in PARTS.items()},
    **{f"beside the data: {name}": lie for name, lie in COMPANIONS.items()},
    **{f"Task: {name}" if ":" not in name else name: lie for name, (_, lie) in TASKS.items()},
}


class Liar:
    """An honest server with four files, except for the answers in ``lies``."""

    def __init__(self, lie: Lie, lies: Callable[[SeenRequest], bool]) -> None:
        self._lie = lie
        self._lies = lies
        self.honest = {
            "core.ndjson": b'{"resourceType":"Bundle","type":"transaction","entry":[]}\n',
            "b1.ndjson": FILE,
            **{f"b{number}.ndjson": bundles(f"b{number}", 20) for number in (2, 3)},
        }
        self.server = PatientExtraction(files=dict(self.honest), polls=1, override=self._override)
        self.hidden = {
            "job-summary.json": b'{"Num-Final-Patients":1}\n',
            "patient-exclusions.csv": b'"Batch-ID"\n',
            "error.json": b'{"resourceType":"OperationOutcome","issue":[{"severity":"error","code":"processing",'
            b'"diagnostics":"CANARY"}]}\n',
            "b1_consent.ndjson": b'{"resourceType":"Bundle","type":"collection"}\n',
            "..%2f..%2fb1.ndjson": bundles("x", 1),
            "login": PAGE.encode(),
        }
        self.server.tasks[OTHER_JOB] = task(OTHER_JOB)
        other = crtdl(cohortDefinition={"version": "2", "inclusionCriteria": []})
        self.server.asked[OTHER_JOB] = {"crtdl": other, "patient": []}

    def _override(self, seen: SeenRequest) -> Reply | Raw | None:
        name = seen.target.partition("?")[0].rpartition("/")[2]
        if self._lies(seen):
            self.server.override, tasks = lambda _: None, copy.deepcopy(self.server.tasks)
            honest = self.server(seen)
            self.server.override = self._override
            if seen.method == "PUT":
                self.server.tasks = tasks  # it says that it did, and did not
            self.server.seen.pop()
            assert isinstance(honest, Reply)
            job_id = next((part for part in seen.target.split("/") if part in self.server.tasks), None)
            said = self._lie.tell(Told(seen, honest, self.server.url, job_id or list(self.server.tasks)[-1]))
            return self._reply(said)
        hidden = self.hidden.get(name)
        return Reply(200, hidden, NDJSON) if hidden is not None else None

    def _reply(self, said: Any) -> Reply | Raw:
        if isinstance(said, Reply | Raw):
            return said
        reply = self._lie.reply(said)
        return Reply(reply.status, reply.body, JSON | dict(reply.headers), reply.length, reply.cut)


def context(tmp_path: Path, url: str) -> StepContext:
    (tmp_path / "crtdl.json").write_text(json.dumps(crtdl()))
    config = configuration(url, file_ready_retries=1)
    config = config.model_validate(
        config.model_dump()
        | {
            "retry": {"max_attempts": 2, "initial_backoff_ms": 0, "max_backoff_ms": 0},
            "limits": {"max_resource_mb": 1},
        }
    )
    return job.context(tmp_path, "extractor", config, crtdl=tmp_path / "crtdl.json", handle=RecordingStore())


def extract(tmp_path: Path, liar: Liar) -> Any:
    clock = SimulatedClock()
    with extraction_server(liar.server):
        return run(context(tmp_path, liar.server.url), client=service_client, clock=clock, sleep=clock.sleep)


def error_of_lie(tmp_path: Path, lie: Lie, liar: Liar) -> SluiceError | None:
    """The error that a lie ends in, with nothing of it in the data or on the screen; ``None`` for one that does not."""
    if lie.reference is None:
        done = extract(tmp_path, liar)
        assert bool(done.warnings) or not lie.because.startswith("gives a warning")
        assert CANARY not in repr(done.warnings)
        return None
    with pytest.raises(SluiceError) as caught:
        extract(tmp_path, liar)
    error = caught.value
    assert error.reference == lie.reference
    assert error.context
    assert CANARY not in error.render()
    imported = {path.name: path.read_bytes() for path in (tmp_path / "import").glob("*")}
    assert imported.items() <= liar.honest.items()
    return error


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBMISSIONS)
def test_a_lie_about_the_submission(name: str, tmp_path: Path) -> None:
    lie = SUBMISSIONS[name]
    liar = Liar(lie, lambda seen: seen.target.endswith("$extract-data"))
    error = error_of_lie(tmp_path, lie, liar)
    assert error is None or not (tmp_path / "import").exists()
    assert liar.server.count("POST", "$extract-data") == 1
    if "200" in name and error is not None:  # the others have no body
        kept = tmp_path / "extraction" / "submission-refused.json"
        assert kept.stat().st_mode & 0o777 == 0o600
        assert "extraction/submission-refused.json" in (error.hint or "")


@pytest.mark.slow
@pytest.mark.parametrize("name", STATUSES)
def test_a_lie_about_the_status(name: str, tmp_path: Path) -> None:
    lie = STATUSES[name]
    assert (
        error_of_lie(tmp_path, lie, Liar(lie, lambda seen: "/__status/" in seen.target)) is None
        or not (tmp_path / "import").exists()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
def test_a_lie_about_the_result(name: str, tmp_path: Path) -> None:
    lie = RESULTS[name]
    polls: list[SeenRequest] = []

    def complete(seen: SeenRequest) -> bool:
        if "/__status/" in seen.target:
            polls.append(seen)
        return "/__status/" in seen.target and len(polls) > 1

    error = error_of_lie(tmp_path, lie, Liar(lie, complete))
    if error is not None and lie.reference in (RESULT, "result-url") and name != "nothing":
        (kept,) = (tmp_path / "extraction" / "failed").iterdir()
        assert kept.stat().st_mode & 0o777 == 0o600
        assert f"extraction/failed/{kept.name}" in (error.hint or "")
        assert not (tmp_path / "extraction" / "manifest.json").exists()
        assert not (tmp_path / "import").exists()


def of_b1(seen: SeenRequest) -> bool:
    return seen.target.endswith("/b1.ndjson") and seen.method == "GET"


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_lie_about_a_file(name: str, tmp_path: Path) -> None:
    lie = FILES[name]
    if error_of_lie(tmp_path, lie, Liar(lie, of_b1)) is not None:
        assert not list((tmp_path / "import").glob("b1*"))
        assert not list((tmp_path / "extraction").glob("failed/*"))  # the body of a download is not kept


def broken(lie: Lie) -> Lie:
    """Breaks off after ``BROKEN`` bytes, and then tells the lie about what is missing."""
    headers = {"ETag": '"v1"', "Last-Modified": "Sat, 21 Nov 2026 12:00:00 GMT"}
    cut = Reply(200, FILE, headers, cut=BROKEN)
    return Lie(lambda told: lie.tell(told) if "range" in told.seen.headers else cut, lie.reference, lie.because)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_a_lie_about_the_rest_of_a_file(name: str, tmp_path: Path) -> None:
    lie = broken(PARTS[name])
    error_of_lie(tmp_path, lie, Liar(lie, of_b1))
    assert not list((tmp_path / "import").glob("b1*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPANIONS)
def test_a_lie_beside_the_data(name: str, tmp_path: Path) -> None:
    lie = COMPANIONS[name]
    audit = "audit" in name
    file = "/x_consent.ndjson" if audit else "/reports/patients.csv"
    liar = Liar(lie, lambda seen: "/fhir/Task/" in seen.target if "Task" in name else seen.target == file)
    honest = liar.server._status

    def status(job_id: str) -> Reply:
        reply = honest(job_id)
        if reply.status == 200:
            document = json.loads(reply.body or b"")
            document["extension"] += [] if audit else reports("patients.csv")
            return Reply(200, json.dumps(document).encode(), JSON)
        output = {"type": {"text": "Consent audit NDJSON"}, "valueUrl": file}
        liar.server.tasks[job_id]["output"] = [output] if audit else []
        return reply

    liar.server._status = status  # type: ignore[method-assign]
    error_of_lie(tmp_path, lie, liar)
    assert {path.name for path in (tmp_path / "import").iterdir()} == set(liar.honest)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_lie_to_a_command(name: str) -> None:
    command, lie = TASKS[name]
    method, ask = COMMANDS[command]
    liar = Liar(lie, lambda seen: seen.method == method)
    with extraction_server(liar.server), client("extractor", attempts=1) as http:
        liar.server._submit()
        job_id = list(liar.server.tasks)[-1]
        asking = ExtractionClient(http, liar.server.url)
        if lie.reference is None:
            ask(asking, job_id)
            return
        with pytest.raises(SluiceError) as caught:
            ask(asking, job_id)
    assert caught.value.reference == lie.reference
    assert CANARY not in caught.value.render()
    if method == "GET":
        assert not liar.server.count("PUT", "Task")  # nothing is changed on such a word
