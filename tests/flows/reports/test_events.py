"""The vocabulary of events: code, JSON Schema and page agree; a line holds one event (docs/observability.md)."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator, ValidationError
from pydantic import BaseModel

from flows.reports import schemas
from flows.reports.events import (
    KINDS,
    EventEntry,
    EventHead,
    Export,
    Gate,
    JobEvent,
    KickOff,
    StepEvent,
    Wait,
    schema,
)
from flows.reports.summary import Summary
from tasks.shared.events import Download, Event, RequestRetry, Status
from tests.conftest import ROOT
from tests.peers.events import entry_of

PAGE = (ROOT / "docs/observability.md").read_text(encoding="utf-8")
HEAD = EventHead(time="2026-03-02T09:15:19.102Z", job="368f91e2-dd1f-4d71-8c99-58332d55a824", run=1)

EXAMPLES: list[Event] = [
    JobEvent(state="created", steps=["local_import", "send"]),
    JobEvent(state="failed", error="disk-full"),
    KickOff(extraction="0b0f4a0a-2ff9-4d0c-8f4c-0f3f3f1f1f1f"),
    Status(message="extracting: 3 of 7 batches", fraction=0.4),
    Download(file="core.ndjson.zst", bytes=10, lines=1, seconds=0.5, sha256="0" * 64),
    RequestRetry(service="send", operation="send transaction", attempt=1, attempts=5, wait=1.0, status=503),
    StepEvent(state="completed", files=1, seconds=0.1, warnings=0),
    Export(mode="s3_upload", files=3),
    Wait(state="decided", approved=False),
    Gate(state="closed", findings=2, resources=1),
]


def validator() -> Draft202012Validator:
    return Draft202012Validator(schema())


def rows(text: str) -> set[str]:
    """Return the keys in the first column of a section's tables."""
    cells = re.findall(r"^\| (`.+?`) \|", text, re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`([^`]+)`", cell)}


def paths(kind: Any, prefix: str = "") -> set[str]:
    """Return the key paths of the leaves of a model."""
    found: set[str] = set()
    for key, one in kind.model_fields.items():
        if one.exclude:
            continue  # kept elsewhere
        name = f"{prefix}{key}"
        inner = [part for part in (one.annotation, *getattr(one.annotation, "__args__", ())) if _is_model(part)]
        if inner:
            listed = "[]" if str(one.annotation).startswith("tuple") else ""
            found |= paths(inner[0], f"{name}{listed}.")
        else:
            found.add(name)
    return found


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def test_there_is_an_example_of_every_kind() -> None:
    assert {type(event) for event in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_every_event_validates_against_the_schema_and_reads_back(event: Event) -> None:
    line = EventEntry(HEAD, event).line()
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    validator().validate(json.loads(line))
    assert entry_of(line) == EventEntry(HEAD, event)


def test_the_head_is_always_whole_and_what_does_not_apply_is_left_out() -> None:
    document = json.loads(EventEntry(HEAD, Wait(state="asked")).line())
    assert set(document) == {"time", "job", "run", "step", "position", "event", "state"}
    assert document["event"] == "wait"


DOWNLOADED = Download(file="a", bytes=1, lines=1, seconds=0.1, sha256="0" * 64)
REPEATED = RequestRetry(service="send", operation="x", attempt=1, attempts=5, wait=1.0, status=503)
WRONG: list[tuple[Event, *tuple[dict[str, object], ...]]] = [
    (JobEvent(state="started"), {"patient": "x"}, {"event": "unheard-of"}, {"state": "unheard-of"}, {"run": "1"},
     {"run": 0}, {"time": None}, {"time": "2026-03-02 09:15:19"}, {"job": ""}, {"step": "send"}, {"position": 1},
     {"step": "send", "position": 0}, {"steps": ["send"]}),
    (JobEvent(state="completed"), {"error": "disk-full"}, {"reason": "SIGTERM"}, {"state": "created"},
     {"state": "failed"}),
    (JobEvent(state="failed", error="disk-full"), {"error": "The disk is full"}),
    (StepEvent(state="running"), {"files": 1}, {"error": "disk-full"}, {"state": "failed"}, {"state": "completed"}),
    (StepEvent(state="completed", warnings=0), {"bytes_out": -1}, {"seconds": "0.1"}, {"retries": 1.5}),
    (Status(message="x"), {"message": ""}, {"fraction": 1.01}),
    (DOWNLOADED, {"sha256": "0" * 63}, {"seconds": -0.1}),
    (REPEATED, {"error": "timeout"}, {"status": 600}, {"attempt": 0}),
    (Wait(state="asked"), {"approved": True}, {"state": "decided"}),
    (Gate(state="open", findings=0, resources=0), {"findings": None}),
    (Export(mode="s3_upload"), {"files": -1}),
    (KickOff(extraction="x"), {"extraction": None}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("event", "change"), [(event, one) for event, *changes in WRONG for one in changes], ids=lambda one: str(one)[:60]
)
def test_what_is_wrong_unheard_of_or_not_of_the_state_is_refused_by_the_schema(
    event: Event, change: dict[str, object]
) -> None:
    document = json.loads(EventEntry(HEAD, event).line())
    validator().validate(document)
    with pytest.raises(ValidationError):
        validator().validate(document | change)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_without_a_field_that_it_must_have_is_refused_by_the_schema(event: Event) -> None:
    document = json.loads(EventEntry(HEAD, event).line())
    optional = {one.encode_name for one in msgspec.structs.fields(type(event)) if not one.required}
    always = {"created": {"steps"}, "failed": {"error"}, "decided": {"approved"}, "completed": {"warnings"}}
    needed = set(document) - optional | always.get(document.get("state"), set())
    for name in needed | ({"status"} if isinstance(event, RequestRetry) else set()):
        with pytest.raises(ValidationError):
            validator().validate({key: value for key, value in document.items() if key != name})


def test_the_kept_schemas_are_current() -> None:
    for name, text in schemas.texts().items():
        kept = (ROOT / "docs/schemas" / name).read_text(encoding="utf-8")
        assert kept == text, "python -m flows.reports.schemas docs/schemas"
        Draft202012Validator.check_schema(json.loads(text))


def test_the_page_lists_exactly_the_kinds_and_their_fields() -> None:
    events = PAGE.partition("\n## Events\n")[2].partition("\n## ")[0]
    general, *sections = re.split(r"^### ", events, flags=re.MULTILINE)
    described = {match[1]: rows(text) for text in sections if (match := re.match(r"`([a-z-]+)`\n", text))}
    assert described == {kind.__struct_config__.tag: fields(kind) for kind in KINDS}
    assert rows(general) == fields(EventHead) | {"event"}


def fields(kind: type[Event | EventHead]) -> set[str]:
    return {one.encode_name for one in msgspec.structs.fields(kind)}


def test_the_page_names_every_value_of_a_state() -> None:
    for component in schema()["$defs"].values():
        for value in component["properties"].get("state", {}).get("enum", ()):
            assert f"`{value}`" in PAGE, value


def test_the_page_lists_exactly_the_keys_of_the_summary() -> None:
    section = PAGE.partition("\n## Summary\n")[2].partition("\n## ")[0]
    assert rows(section) == paths(Summary)


def test_the_example_on_the_page_is_an_event() -> None:
    (example,) = re.findall(r"^```json\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    validator().validate(json.loads(example))
