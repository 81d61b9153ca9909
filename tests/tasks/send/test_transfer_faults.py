"""Faults of the store of a transfer, beyond those of every step (document 3 §7)."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.shared.errors import ServiceError
from tests.peers.data import CANARY
from tests.peers.server import Reply, ScriptedServer, SeenRequest
from tests.peers.steps import StepPlace


@pytest.fixture
def place(tmp_path: Path) -> StepPlace:
    return StepPlace("transfer", tmp_path).fill()


@pytest.fixture
def store(place: StepPlace) -> Iterator[ScriptedServer]:
    with place.serve() as store:
        yield store


def script(store: ScriptedServer, reply: Reply, method: str, kind: str, times: int = 1_000) -> None:
    left = iter([reply] * times)
    store.script = lambda seen: next(left, None) if seen.method == method and f"/{kind}" in seen.target else None


def received(place: StepPlace, store: ScriptedServer) -> bool:
    """Return whether the store has the files of the job, and one document about them."""
    made = {key.partition("/")[0]: body for key, body in store.answer.resources.items()}  # type: ignore[attr-defined]
    assert len(made) == len(store.answer.resources) == 2  # type: ignore[attr-defined]
    look = SeenRequest("GET", f"/fhir/{next(iter(store.answer.resources))}", {}, b"")  # type: ignore[attr-defined]
    reply = store.answer(look)
    assert isinstance(reply, Reply)
    with zipfile.ZipFile(io.BytesIO(reply.body or b"")) as packed:
        names = {name for name in packed.namelist() if name != "manifest.json"}
    return names == {path.name.removesuffix(".zst") for path in place.input.iterdir()}


def writes(store: ScriptedServer) -> list[str]:
    return [seen.target.split("/")[2] for seen in store.seen if seen.method == "PUT"]


@pytest.mark.parametrize("reply", [Reply(503), Reply(409), Reply(reset=True)], ids=["503", "409", "reset"])
@pytest.mark.parametrize("kind", ["Binary", "DocumentReference"])
def test_a_transient_fault_is_repeated(place: StepPlace, store: ScriptedServer, reply: Reply, kind: str) -> None:
    script(store, reply, "PUT", kind, times=1)
    place.run(store.url)
    assert received(place, store)


@pytest.mark.parametrize(
    ("status", "reference", "hint"), [(413, "transfer-too-large", "raise"), (507, "transfer-store-full", "space")]
)
def test_too_large_and_full_say_what_to_do_on_the_server(
    place: StepPlace, store: ScriptedServer, status: int, reference: str, hint: str
) -> None:
    script(store, Reply(status), "PUT", "Binary")
    with pytest.raises(ServiceError) as caught:
        place.run(store.url)
    assert (caught.value.reference, caught.value.status, caught.value.exit_code) == (reference, status, 1)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    "reply",
    [Reply(status) for status in (401, 403, 404)]
    + [Reply(200, f"<html>{CANARY}</html>".encode(), {"Content-Type": "text/html"}), Reply(200, CANARY.encode())],
    ids=["401", "403", "404", "a page", "a word"],
)
def test_a_search_without_a_result_ends_the_step_before_anything_is_sent(
    place: StepPlace, store: ScriptedServer, reply: Reply
) -> None:
    script(store, reply, "GET", "DocumentReference")
    with pytest.raises(ServiceError) as caught:
        place.run(store.url)
    assert CANARY not in caught.value.render()
    assert writes(store) == []


@pytest.mark.parametrize("status", [400, 404, 405, 410, 501])
def test_a_server_that_cannot_say_whether_it_has_the_binary_gets_it(
    place: StepPlace, store: ScriptedServer, status: int
) -> None:
    script(store, Reply(status), "HEAD", "Binary")
    for _ in range(2):
        place.run(store.url)
    assert received(place, store)


@pytest.mark.parametrize("left", [b"PK", None], ids=["a half one", "none"])
def test_a_binary_that_is_not_whole_is_sent_again(place: StepPlace, store: ScriptedServer, left: bytes | None) -> None:
    place.run(store.url)
    resources = store.answer.resources  # type: ignore[attr-defined]
    (binary,) = [key for key in resources if key.startswith("Binary/")]
    if left is None:
        del resources[binary]
    else:
        resources[binary] = left
    place.run(store.url)
    assert writes(store).count("Binary") == 2


def test_an_upload_that_the_server_sends_back_is_not_read(place: StepPlace, store: ScriptedServer) -> None:
    """Some servers ignore ``Prefer: return=minimal``."""

    def sent_back(seen: SeenRequest) -> Reply | None:
        if seen.method != "PUT":
            return None
        honest = store.answer(seen)
        assert isinstance(honest, Reply)
        return replace(honest, body=b"x" * 1000, length=1 << 40)

    store.script = sent_back
    place.run(store.url)
    assert writes(store) == ["Binary", "DocumentReference"]


def test_headers_are_those_that_hapi_wants(place: StepPlace, store: ScriptedServer) -> None:
    place.run(store.url)
    by = {f"{seen.method} {seen.target.partition('?')[0].split('/')[2]}": seen.headers for seen in store.seen}
    assert by["GET DocumentReference"]["cache-control"] == "no-cache"
    assert by["HEAD Binary"]["accept"] == "application/zip"
    for kind in ("Binary", "DocumentReference"):
        assert by[f"PUT {kind}"]["prefer"] == "return=minimal"
    assert by["PUT DocumentReference"]["content-type"] == "application/fhir+json"
