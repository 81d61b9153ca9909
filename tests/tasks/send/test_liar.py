"""Targets that lie in one way at a time (document 3 §7): the result of each lie, for each mode.

A FHIR server, a transfer endpoint and a store, honest but for one answer. Every lie ends the step with an error, or is
listed with the reason why it cannot be noticed. ``docs/lies.md`` is made from these tables
(``tests/docs/test_lies.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from tasks.shared.errors import SluiceError
from tests.peers import fhir
from tests.peers.data import bundle
from tests.peers.fhir import observation
from tests.peers.lies import HonestAnswer, Lie
from tests.peers.s3 import S3Job, configuration, scripted
from tests.peers.server import Reply
from tests.peers.transfer import PROJECT, SYSTEM, Endpoint, TransferJob, searchset

ANSWER = "send-answer"
VICTIM = 3
"""The transaction that is answered with a lie, of eight of three resources each."""


Change = Callable[[HonestAnswer], Any]


def with_entries(change: Change) -> Change:
    return lambda asked: asked.answer | {"entry": change(asked)}


def response(**changes: Any) -> Change:
    """The response of the last entry is another one."""
    return with_entries(lambda asked: [*asked.entries[:-1], {"response": asked.entries[-1]["response"] | changes}])


def stored(**changes: Any) -> Change:
    """The last entry has a resource: the one that was put, but for the changes."""

    def lie(asked: HonestAnswer) -> Any:
        put = {"resourceType": "Observation", "id": "o3-2"} | changes
        last = asked.entries[-1] | {"resource": {key: value for key, value in put.items() if value is not None}}
        return asked.answer | {"entry": [*asked.entries[:-1], last]}

    return lie


def remark(severity: str) -> dict[str, Any]:
    issue = {"severity": severity, "code": "processing", "diagnostics": "canary"}
    return {"resourceType": "OperationOutcome", "issue": [issue]}


def dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


ERROR = remark("error")


def without(*names: str) -> Change:
    return lambda asked: {key: value for key, value in asked.answer.items() if key not in names}


def bare(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without locations."""
    return answer | {"entry": [{"response": {"status": entry["response"]["status"]}} for entry in answer["entry"]]}


TRANSACTIONS: dict[str, Lie] = {
    # What it is
    "HTML": Lie(lambda _: "<html>canary</html>", ANSWER),
    "nothing": Lie(lambda _: "", ANSWER),
    "half of the JSON": Lie(lambda asked: asked.text[:-20], ANSWER),
    "two documents": Lie(lambda asked: asked.text * 2, ANSWER),
    "a JSON list": Lie(lambda asked: [asked.answer], ANSWER),
    "null": Lie(lambda _: None, ANSWER),
    "an OperationOutcome": Lie(lambda _: {"resourceType": "OperationOutcome", "issue": []}, ANSWER),
    "no resourceType": Lie(without("resourceType"), ANSWER),
    "no type": Lie(without("type"), ANSWER),
    "the transaction as it was sent": Lie(lambda asked: asked.sent, ANSWER),
    "a searchset": Lie(lambda asked: asked.answer | {"type": "searchset"}, ANSWER),
    "a batch-response": Lie(lambda asked: asked.answer | {"type": "batch-response"}, ANSWER),
    "text/html by its header": Lie(lambda asked: asked.answer, ANSWER, headers={"Content-Type": "text/html"}),
    "XML by its header": Lie(lambda asked: asked.answer, ANSWER, headers={"Content-Type": "application/fhir+xml"}),
    "no UTF-8": Lie(lambda asked: asked.text[:-1].encode() + b',"x":"\xff"}', ANSWER),
    "nested too deeply": Lie(lambda asked: asked.text[:-1] + ',"x":' + "[" * 9000 + "]" * 9000 + "}", ANSWER),
    # Entries
    "an entry is missing": Lie(with_entries(lambda asked: asked.entries[:-1]), ANSWER),
    "an entry too many": Lie(with_entries(lambda asked: [*asked.entries, asked.entries[-1]]), ANSWER),
    "no entries": Lie(with_entries(lambda _: []), ANSWER),
    "entry is gone": Lie(without("entry"), ANSWER),
    "entry is an object": Lie(with_entries(lambda asked: asked.entries[0]), ANSWER),
    "an entry is null": Lie(with_entries(lambda asked: [*asked.entries[:-1], None]), ANSWER),
    "an entry without response": Lie(with_entries(lambda asked: [*asked.entries[:-1], {}]), ANSWER),
    "a response that is null": Lie(with_entries(lambda asked: [*asked.entries[:-1], {"response": None}]), ANSWER),
    # Statuses
    "status 2000": Lie(response(status="2000"), ANSWER),
    "status 200OK": Lie(response(status="200OK"), ANSWER),
    "status 20": Lie(response(status="20"), ANSWER),
    "status 200 as a number": Lie(response(status=200), ANSWER),
    "an empty status": Lie(response(status=""), ANSWER),
    "status OK": Lie(response(status="OK"), ANSWER),
    "a blank before the status": Lie(response(status=" 200 OK"), ANSWER),
    "a tab behind the status": Lie(response(status="200\tOK"), ANSWER),
    "a line break behind the status": Lie(response(status="200\n"), ANSWER),
    "digits of another script": Lie(response(status="\u0662\u0660\u0660"), ANSWER),
    "status 299.5": Lie(response(status="299.5"), ANSWER),
    "status 999": Lie(response(status="999 Fine"), ANSWER),
    "no status": Lie(
        with_entries(lambda asked: [*asked.entries[:-1], {"response": {"etag": 'W/"1"'}}]), ANSWER
    ),
    "status 304": Lie(response(status="304 Not Modified"), "send-refused"),
    "status 100": Lie(response(status="100 Continue"), "send-refused"),
    "one of a transaction refused": Lie(response(status="422 Unprocessable Entity"), "send-refused"),
    # Beside a status
    "an outcome of an error beside 201": Lie(response(outcome=ERROR), "send-refused"),
    "an outcome of a fatal error beside 201": Lie(response(outcome=remark("fatal")), "send-refused"),
    "an error behind a remark beside 201": Lie(
        response(outcome=remark("information") | {"issue": [*remark("information")["issue"], *ERROR["issue"]]}),
        "send-refused",
    ),
    "an outcome of a warning beside 201": Lie(
        response(outcome=remark("warning")), None, "servers add such remarks to resources that they stored"
    ),
    "an outcome that is a text": Lie(response(outcome="stored"), ANSWER),
    "another resource in the answer": Lie(stored(id="o0-0"), ANSWER),
    "a resource of another type in the answer": Lie(stored(resourceType="Patient"), ANSWER),
    "a resource without an id in the answer": Lie(stored(id=None), ANSWER),
    "an OperationOutcome as the resource in the answer": Lie(stored(resourceType="OperationOutcome", id=None), ANSWER),
    # Locations
    "the location of another resource": Lie(response(location="Observation/o0-0/_history/1"), ANSWER),
    "the location of another type": Lie(response(location="Patient/o3-2/_history/1"), ANSWER),
    "an id that begins like ours": Lie(response(location="Observation/o3-20"), ANSWER),
    "an id that ends like ours": Lie(response(location="http://elsewhere/Observation/xo3-2"), ANSWER),
    "our resource on another host": Lie(response(location="http://elsewhere/fhir/Observation/o3-2"), ANSWER),
    "our resource on another host, with a version": Lie(
        response(location="https://elsewhere:8080/fhir/Observation/o3-2/_history/1"), ANSWER
    ),
    "our resource on another host, without a scheme": Lie(response(location="//elsewhere/Observation/o3-2"), ANSWER),
    "our resource on a host that is none": Lie(response(location="http://[x/Observation/o3-2"), ANSWER),
    "our resource on another port of localhost": Lie(
        response(location="http://localhost:8080/fhir/Observation/o3-2/_history/1"),
        None,
        "a server in a container or behind a proxy often reports localhost as its address",
    ),
    "a location that is the server": Lie(response(location="http://elsewhere/fhir"), ANSWER),
    "an empty location": Lie(response(location=""), ANSWER),
    "a location that is a list": Lie(response(location=["Observation/o3-2"]), ANSWER),
    "two locations changed places": Lie(
        with_entries(lambda asked: [asked.entries[1], asked.entries[0], asked.entries[2]]), ANSWER
    ),
    "the answer before": Lie(lambda asked: asked.before[-1], ANSWER),
    "the answer before, without locations": Lie(
        lambda asked: bare(asked.before[-1]), None, "a result without location has nothing of the resource in it"
    ),
    "nothing was stored": Lie(
        lambda asked: asked.answer, None, "only reading everything back would show it"
    ),
    # Keys that stand twice
    "resourceType twice": Lie(lambda asked: '{"resourceType":"Patient",' + asked.text[1:], ANSWER),
    "type twice": Lie(lambda asked: '{"type":"searchset",' + asked.text[1:], ANSWER),
    "entry twice": Lie(lambda asked: '{"entry":[],' + asked.text[1:], ANSWER),
    "entry twice, once escaped": Lie(lambda asked: '{"\\u0065ntry":[],' + asked.text[1:], ANSWER),
    "response twice in an entry": Lie(
        lambda asked: asked.text.replace('{"response"', '{"response":{"status":"422"},"response"', 1), ANSWER
    ),
    "status twice in a response": Lie(
        lambda asked: asked.text.replace('{"status"', '{"status":"422 No","status"', 1), ANSWER
    ),
    "status twice, once escaped": Lie(
        lambda asked: asked.text.replace('{"status"', '{"\\u0073tatus":"422 No","status"', 1), ANSWER
    ),
    "outcome twice in a response": Lie(
        lambda asked: asked.text.replace('{"status"', f'{{"outcome":{dumped(ERROR)},"outcome":{{}},"status"', 1), ANSWER
    ),
    "outcome twice, once escaped": Lie(
        lambda asked: asked.text.replace('{"status"', f'{{"\\u006futcome":{dumped(ERROR)},"outcome":{{}},"status"', 1),
        ANSWER,
    ),
    "severity twice in an issue": Lie(
        lambda asked: asked.text.replace(
            '{"status"', '{"outcome":{"issue":[{"severity":"error","severity":"warning"}]},"status"', 1
        ),
        ANSWER,
    ),
    "resource twice in an entry": Lie(
        lambda asked: asked.text.replace('{"response"', '{"resource":{"id":"x"},"resource":null,"response"', 1), ANSWER
    ),
    "location twice": Lie(
        lambda asked: asked.text.replace('{"status"', '{"location":"Patient/x","status"', 1), ANSWER
    ),
    # HTTP
    "201": Lie(lambda asked: asked.answer, ANSWER, status=201),
    "202": Lie(lambda asked: asked.answer, ANSWER, status=202),
    "an empty 204": Lie(lambda _: "", ANSWER, status=204),
    "a Content-Length that is too long": Lie(lambda asked: asked.answer, "connection-broken", cut=True),
    "a redirect": Lie(
        lambda _: "", "redirect-refused", status=307, headers={"Location": "http://127.0.0.1:1/fhir"}
    ),
}  # fmt: skip


def honest(sent: dict[str, Any]) -> dict[str, Any]:
    """Return HAPI's answer: statuses and locations."""
    urls = [entry["request"]["url"] for entry in sent["entry"]]
    entries = [{"response": {"status": "201 Created", "location": f"{url}/_history/1"}} for url in urls]
    return {"resourceType": "Bundle", "type": "transaction-response", "entry": entries}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSACTIONS)
def test_a_lie_about_a_transaction_is_noticed_or_listed(name: str, tmp_path: Path) -> None:
    lie = TRANSACTIONS[name]
    job = fhir.DirectLoadJob(tmp_path)
    job.write("a.ndjson", *[bundle(*[observation(f"o{n}-{k}") for k in range(3)]) for n in range(8)])
    before: list[dict[str, Any]] = []

    def script(_: int, sent: dict[str, Any]) -> Any:
        answer = honest(sent)
        if sent["entry"][0]["request"]["url"] == f"Observation/o{VICTIM}-0":
            return lie.reply(lie.tell(HonestAnswer(sent, answer, before)))
        before.append(answer)
        return lie.reply(answer) if lie.reference is None else fhir.FhirReply(body=json.dumps(answer).encode())

    with fhir.serving(script) as server:
        if lie.reference is None:
            job.send(server.url, batch_size=3, max_concurrent_requests=1)
            return
        with pytest.raises(SluiceError) as caught:
            job.send(server.url, batch_size=3, max_concurrent_requests=1, attempts=1)
        assert caught.value.reference == lie.reference
        assert "canary" not in caught.value.render()
        kept = list((job.directory / "send" / "failed").glob("*.txt"))
        if lie.reference == ANSWER:
            assert caught.value.context == f"a.ndjson:{VICTIM + 1}"
            assert len(kept) == (name not in ("nothing", "an empty 204"))
            assert all(path.stat().st_mode & 0o777 == 0o600 for path in kept)
        server.script = None
        resumed = job.send(server.url, batch_size=3, max_concurrent_requests=1)
    assert resumed.resources_out == 24
    times = [sent.count(f"Observation/o{VICTIM}-2") for sent in server.sent]
    assert sum(times) > 1  # nothing of the wrong answer counted: it was sent again


def document(**changes: Any) -> Change:
    """Replace the document that the search finds."""
    return lambda found: searchset(found | changes)


def attachment(**changes: Any) -> Change:
    def lie(found: Any) -> Any:
        (content,) = found["content"]
        return searchset(found | {"content": [{"attachment": content["attachment"] | changes}]})

    return lie


MASTER = {"system": SYSTEM, "value": PROJECT}
FOREIGN = {
    "resourceType": "DocumentReference",
    "id": "theirs",
    "masterIdentifier": {"system": SYSTEM, "value": "Another-Project"},
}
SEARCH, DIFFERS = "transfer-answer", "transfer-differs"
ZIP = {"Content-Type": "application/zip"}

TRANSFERS: dict[str, Lie] = {
    # Before anything is sent; nothing is found yet
    "search: HTML": Lie(lambda _: "<html>canary</html>", SEARCH),
    "search: text/html by its header": Lie(lambda _: searchset(), SEARCH, headers={"Content-Type": "text/html"}),
    "search: 202": Lie(lambda _: searchset(), SEARCH, status=202),
    "search: a history": Lie(lambda _: searchset() | {"type": "history"}, SEARCH),
    "search: another project's document": Lie(lambda _: searchset(FOREIGN), SEARCH),
    "search: an id that leads elsewhere": Lie(
        lambda _: searchset(FOREIGN | {"id": "../Patient/x", "masterIdentifier": MASTER}), SEARCH
    ),
    "search: entry twice": Lie(lambda _: '{"entry":[],' + json.dumps(searchset(FOREIGN))[1:], SEARCH),
    "search: id twice in a document": Lie(
        lambda _: json.dumps(searchset(FOREIGN)).replace('"id"', '"id":"ours","id"', 1), SEARCH
    ),
    "look again: another size": Lie(lambda _: "x" * 7, DIFFERS, headers=ZIP),
    "look again: the Binary is not there": Lie(
        lambda _: "", None, "some servers say so to every HEAD", status=404
    ),
    # The document as it is read back
    "commit: nothing was stored": Lie(lambda _: "", DIFFERS),
    "search again and again: nothing": Lie(lambda _: searchset(), DIFFERS),
    "search again and again: another id": Lie(document(id="other"), DIFFERS),
    "search again and again: another document first": Lie(
        lambda found: searchset(FOREIGN | {"masterIdentifier": MASTER}, found), DIFFERS
    ),
    "search again and again: another Binary": Lie(attachment(url="Binary/other"), DIFFERS),
    "search again and again: a Binary elsewhere": Lie(attachment(url="http://elsewhere/fhir/Binary/x"), DIFFERS),
    "search again and again: another hash": Lie(attachment(hash="AAAA"), DIFFERS),
    "search again and again: another size": Lie(attachment(size=1), DIFFERS),
    "search again and again: a size that is a text": Lie(attachment(size="1"), DIFFERS),
    "search again and again: no attachment": Lie(document(content=[]), DIFFERS),
    "search again and again: another kind of attachment": Lie(attachment(contentType="text/html"), DIFFERS),
    "search again and again: entered in error": Lie(document(status="entered-in-error"), DIFFERS),
    "search again and again: preliminary": Lie(document(docStatus="preliminary"), DIFFERS),
    "search again and again: another author": Lie(document(author=[{"identifier": {"value": "other.org"}}]), DIFFERS),
    "search again and again: no author": Lie(document(author=None), DIFFERS),
    "search again and again: another project": Lie(document(masterIdentifier=FOREIGN["masterIdentifier"]), SEARCH),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFERS)
def test_a_lie_about_a_transfer_is_noticed_or_listed(name: str, tmp_path: Path) -> None:
    lie = TRANSFERS[name]
    when = name.partition(":")[0]
    job = TransferJob(tmp_path)
    job.fill()

    def script(moment: str, seen: Any, honest: Any) -> Any:
        committed = server.moments.count("commit")
        if moment == when and when in ("search", "look again"):
            return lie.reply(lie.tell(None))
        if moment == when == "commit":
            server.documents.clear()
        if when == "search again and again" and moment == "search again" and committed:
            (found,) = server.documents.values()
            return lie.reply(lie.tell(found))
        return None

    with Endpoint(lambda *seen: with_kind(script(*seen))) as server:
        if lie.reference is None:
            job.send(server.url)
            return
        with pytest.raises(SluiceError) as caught:
            job.send(server.url, attempts=1)
        assert caught.value.reference == lie.reference
        assert "canary" not in caught.value.render()
        assert "upload" not in server.moments or when != "search"
        server.script = None
        job.send(server.url)
        (found,) = server.documents.values()
    assert found["content"][0]["attachment"]["url"].startswith("Binary/")


def with_kind(reply: Any) -> Any:
    """Set a JSON content type if the reply has none."""
    return reply and replace(reply, headers={"Content-Type": "application/fhir+json", **reply.headers})


STORED, NO_STORE = "s3-differs", "s3-answer"
WRONG_MD5 = "0" * 32
WARNED = "gives a warning, once for all objects"


def headers(**changes: str) -> Change:
    """HEAD is answered with other headers; names with ``_`` for ``-``."""
    return lambda honest: replace(
        honest, headers=honest.headers | {name.replace("_", "-"): value for name, value in changes.items()}
    )


def expiring(days: int) -> str:
    moment = format_datetime(datetime.now(UTC) + timedelta(days=days), usegmt=True)
    return f'expiry-date="{moment}", rule-id="canary"'


OBJECTS: dict[str, Lie] = {
    "PUT: a log-in page": Lie(lambda _: Reply(200, b"<html>canary</html>"), NO_STORE),
    "PUT: no ETag": Lie(headers(ETag=""), NO_STORE),
    "PUT: 204": Lie(lambda _: Reply(204), NO_STORE),
    "PUT: nothing was stored": Lie(
        lambda _: Reply(200, headers={"ETag": '"x"'}), STORED
    ),
    "PUT: the ETag of another object": Lie(headers(ETag=f'"{WRONG_MD5}"'), STORED),
    "HEAD: not there": Lie(lambda _: Reply(404), STORED),
    "HEAD: another size": Lie(lambda honest: replace(honest, length=3), STORED),
    "HEAD: no metadata": Lie(  # the object of another thread may not be there yet, and have no ETag
        lambda honest: replace(honest, headers={"ETag": honest.headers.get("ETag", "")}), STORED
    ),
    "HEAD: another SHA-256": Lie(headers(x_amz_meta_sha256="0" * 64), STORED),
    "HEAD: another ETag": Lie(headers(ETag='"other"'), STORED),
    "HEAD: no ETag": Lie(headers(ETag=""), STORED),
    "both: the MD5 of something else": Lie(headers(ETag=f'"{WRONG_MD5}"'), STORED),
    "both: the MD5 of something else, under a key of KMS": Lie(
        headers(ETag=f'"{WRONG_MD5}"', x_amz_server_side_encryption="aws:kms"),
        None,
        "the ETag of such an object is not its MD5",
    ),
    "both: an ETag that is no MD5": Lie(
        headers(ETag='"abc-1"'), None, "not every store makes it of the content; size and SHA-256 agree"
    ),
    "both: the MD5 of something else, under a customer's key": Lie(
        headers(ETag=f'"{WRONG_MD5}"', x_amz_server_side_encryption_customer_algorithm="AES256"),
        None,
        "the ETag of such an object is not its MD5",
    ),
    "HEAD: a delete marker": Lie(headers(x_amz_delete_marker="true"), None, WARNED),
    "HEAD: a delete marker, and nothing there": Lie(
        lambda _: Reply(404, headers={"x-amz-delete-marker": "true"}), STORED
    ),
    "HEAD: a Content-Encoding that was not sent": Lie(headers(Content_Encoding="gzip"), None, WARNED),
    "HEAD: an expiration in a week": Lie(headers(x_amz_expiration=expiring(7)), None, WARNED),
    "HEAD: an expiration in a year": Lie(
        headers(x_amz_expiration=expiring(365)), None, "a year is time enough to fetch the data"
    ),
    "HEAD: storage class GLACIER": Lie(headers(x_amz_storage_class="GLACIER"), None, WARNED),
    "HEAD: storage class DEEP_ARCHIVE": Lie(headers(x_amz_storage_class="DEEP_ARCHIVE"), None, WARNED),
    "HEAD: storage class STANDARD_IA": Lie(
        headers(x_amz_storage_class="STANDARD_IA"), None, "its contents can be read immediately"
    ),
    "HEAD: 403": Lie(lambda _: Reply(403), None, "keys that may write but not read are recommended"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTS)
def test_a_lie_about_an_object_is_noticed_or_listed(name: str, tmp_path: Path) -> None:
    lie = OBJECTS[name]
    when = name.partition(":")[0]
    job = S3Job(tmp_path)
    for number in range(3):
        job.write(f"{number}.ndjson", b'{"resourceType":"Patient","id":"p"}\n')

    def script(asked: Any) -> Any:
        uploaded = "PutObject" in store.names()
        if asked.name == "PutObject" and when in ("PUT", "both"):
            if "nothing was stored" in name:
                return lie.tell(None)
            return lie.tell(store.serve(asked))
        if asked.name == "HeadObject" and uploaded and when in ("HEAD", "both"):
            return lie.tell(store.serve(asked))
        return None

    with scripted(script) as store:
        if lie.reference is None:
            report = job.send(store.url)
            assert len(report.warnings) == (lie.because == WARNED)
            assert "canary" not in str(report.warnings)
            assert job.context.meter.snapshot().warnings == report.warnings
            return
        with pytest.raises(SluiceError) as caught:
            job.send(configuration(store.url, attempts=1))
        assert caught.value.reference == lie.reference
        assert "canary" not in caught.value.render()
        assert not job.manifest.exists()
        store.script = None
        job.send(store.url)
    assert store.objects
