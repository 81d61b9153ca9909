"""The step against a scripted service: splitting, joining, answers that are not the pseudonymized line, leaks, dates.

What all steps do (faults, kills, resumption, memory) is in the tables beside this directory.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from msgspec import Raw

from config import PipelineConfig
from tasks.pseudonymizer.step import STEP, gate
from tasks.shared.errors import GateError, ServiceError, SluiceError
from tasks.shared.report import StepReport
from tests.peers import job, services
from tests.peers.data import CANARY, bundle, identified, observation, patient, resource, write
from tests.peers.lines import read_lines
from tests.peers.server import Reply, ScriptedServer, SeenRequest

IDENTIFYING = {"name", "telecom", "address", "identifier", "text", "photo", "birthDate"}
Json = dict[str, Any]
Change = Callable[[Json], Json | None]


def is_probe(seen: SeenRequest) -> bool:
    return b"sluice-probe" in seen.body


def sent(seen: SeenRequest) -> Json:
    return dict(json.loads(services.deidentify(seen.body)[0]))


class Place:
    """A job directory with input, and a service whose answers to real lines a function changes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.change: Change = lambda _: None
        self.requests: list[Json] = []

    def put(self, name: str, *lines: Any) -> None:
        write(self.directory / "import" / name, *lines)

    @contextmanager
    def service(self, script: Callable[[SeenRequest], Reply | None] | None = None) -> Iterator[str]:
        def scripted(seen: SeenRequest) -> Reply | None:
            if script is not None and (said := script(seen)) is not None:
                return said
            if is_probe(seen):
                return None
            self.requests.append(sent(seen))
            answer = services.deidentify(seen.body)[0]
            if b'"Bundle"' not in answer[:40]:
                return None
            redacted = json.loads(services.pseudonyms(answer))
            for entry in redacted["entry"]:
                for name in IDENTIFYING & entry["resource"].keys():
                    del entry["resource"][name]
            changed = self.change(json.loads(json.dumps(redacted)))
            return services.as_json(redacted if changed is None else changed)

        with ScriptedServer(services.pseudonymization, scripted) as server:
            yield server.url

    def run(self, url: str, **keys: Any) -> StepReport:
        retry = {"max_attempts": 2, "initial_backoff_ms": 1, "max_backoff_ms": 1}
        config = PipelineConfig.model_validate({"services": {"pseudonymizer": {"url": url} | keys}, "retry": retry})
        self.context = job.context(
            self.directory, "pseudonymizer", config, position=2, source=self.directory / "import"
        )
        return STEP.run(self.context)

    def fails(self, kind: type[SluiceError], **keys: Any) -> SluiceError:
        with self.service() as url, pytest.raises(kind) as caught:
            self.run(url, **keys)
        assert CANARY not in caught.value.render()
        return caught.value

    def lines(self, name: str = "a.ndjson.zst") -> list[bytes]:

        return read_lines(self.directory / "pseudonymized" / name)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def large(count: int, size: int = 300_000) -> Json:
    rest = [observation(f"o{n}", status="final", note=[{"text": "x" * size}]) for n in range(count)]
    return identified("b1", patient("p"), *rest, total=count)


def test_a_bundle_above_the_threshold_is_split_and_joined(place: Place) -> None:
    place.put("a.ndjson", identified("b0", patient("q")), large(10), resource("Basic", "z", x="x" * 2_000_000))
    with place.service() as url:
        report = place.run(url, bundle_split_threshold_mb=1)
    parts = [one for one in place.requests if one.get("id") == "b1"]
    assert len(parts) == 4
    assert all(len(json.dumps(one)) <= 1 << 20 and one["type"] == "transaction" for one in parts)
    whole = json.loads(place.lines()[1])
    assert [entry["resource"]["resourceType"] for entry in whole["entry"]] == ["Patient"] + ["Observation"] * 10
    assert "total" not in whole
    assert (report.lines_in, report.lines_out, report.resources_in, report.resources_out) == (3, 3, 13, 13)
    assert any("a.ndjson:3" in warning and "alone" in warning for warning in report.warnings)


def test_413_halves_the_chunk_and_a_single_entry_is_named(place: Place) -> None:
    place.put("a.ndjson", large(6, 10))

    def small(most: int) -> Callable[[SeenRequest], Reply | None]:
        return lambda seen: None if is_probe(seen) or len(sent(seen)["entry"]) <= most else Reply(413)

    with place.service(small(2)) as url:
        place.run(url)
    assert len(json.loads(place.lines()[0])["entry"]) == 7
    with place.service(small(0)) as url, pytest.raises(ServiceError) as caught:
        place.run(url, max_concurrent_requests=1, bundle_split_threshold_mb=2)
    assert caught.value.reference == "pseudonymizer-too-large"
    assert "a.ndjson:1 Patient" in str(caught.value.context)


def test_core_is_first_and_lines_keep_their_order_and_spelling(place: Place) -> None:
    place.put("CORE.ndjson", resource("Organization", "x"))
    place.put("a.ndjson", *[patient(f"p{n}", multipleBirthInteger=n) for n in range(50)])
    place.put("b.ndjson.zst", b'{"resourceType":"Observation","id":"o","valueQuantity":{"value":1.50}}')
    with place.service() as url:
        place.run(url)
    assert place.requests[0]["resourceType"] == "Organization"
    assert [json.loads(line)["multipleBirthInteger"] for line in place.lines()] == list(range(50))
    assert b'"value":1.50' in place.lines("b.ndjson.zst")[0]


def drop(answer: Json) -> Json:
    return answer | {"entry": answer["entry"][1:]}


@pytest.mark.parametrize(
    ("change", "reference"),
    [
        (lambda _: patient("other"), "answer-other-kind"), (drop, "answer-entries"),
        (lambda answer: answer | {"entry": [{}] * len(answer["entry"])}, "answer-entries"),
        (lambda answer: answer | {"entry": answer["entry"][::-1]}, "answer-types"),
        (lambda answer: answer | {"entry": {}}, "answer-not-a-resource"),
        (lambda answer: {"entry": answer["entry"]}, "answer-not-a-resource"),
        (lambda answer: answer | {"entry": [{"resource": patient("x" * 65)}, *answer["entry"][1:]]}, "ids-invalid"),
    ],
)  # fmt: skip
def test_an_answer_that_is_not_the_line_ends_the_step_and_is_kept(place: Place, change: Change, reference: str) -> None:
    place.put("a.ndjson", bundle(patient("p", name=[{"family": CANARY}]), observation("o")))
    place.change = change
    error = place.fails(ServiceError)
    assert (error.reference, error.context) == (reference, "a.ndjson:1")
    assert list((place.directory / "pseudonymizer/failed").glob("*.txt"))
    assert not list((place.directory / "pseudonymized").glob("*"))


def test_a_rule_set_with_remove_may_make_entries_fewer_and_no_other(place: Place, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("fhirPathRules: [{path: nodesByType('Observation'), method: remove}]")
    place.put("a.ndjson", bundle(patient("p"), observation("o")))
    place.change = lambda answer: answer | {"entry": answer["entry"][:1]}
    with place.service() as url:
        report = place.run(url, anonymization_config=str(rules))
    assert (report.resources_in, report.resources_out) == (2, 1)
    place.change = lambda answer: answer | {"entry": answer["entry"][:1] * 3}
    assert place.fails(ServiceError, anonymization_config=str(rules), bundle_split_threshold_mb=3)


def test_a_bundle_type_that_the_rules_removed_is_put_back(place: Place) -> None:
    place.put("a.ndjson", bundle(patient("p")))
    place.change = lambda answer: {key: value for key, value in answer.items() if key != "type"}
    with place.service() as url:
        place.run(url)
    assert json.loads(place.lines()[0])["type"] == "transaction"


def keep(**elements: Any) -> Change:
    """Return a service that gives back these elements of the Patient as they were."""

    def change(answer: Json) -> Json:
        for entry in answer["entry"]:
            if entry["resource"]["resourceType"] == "Patient":
                entry["resource"] |= elements
        return answer

    return change


PERSON: Json = {
    "name": [{"family": f"{CANARY}-F", "given": ["Li"]}], "telecom": [{"value": f"{CANARY}-T"}],
    "address": [{"line": [f"{CANARY}-L"], "city": "Bonn"}], "birthDate": "1970-01-31",
    "identifier": [{"system": "http://mrn", "value": f"{CANARY}-I"}], "text": {"div": f"<div>{CANARY}</div>"},
    "photo": [{"data": "QUJD" * 8}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("element", "path"),
    [
        ("name", "Patient.name.family"), ("telecom", "Patient.telecom.value"), ("address", "Patient.address.line"),
        ("identifier", "Patient.identifier.value"), ("text", "Patient.text.div"), ("photo", "Patient.photo.data"),
        ("birthDate", "Patient.birthDate"),
    ],
)  # fmt: skip
def test_identifying_values_that_come_back_end_the_step_after_the_file(place: Place, element: str, path: str) -> None:
    person = patient("p", **PERSON)
    place.put("a.ndjson", bundle(person), bundle(patient("q", birthDate="1980-02-03")))
    place.put("b.ndjson", bundle(patient("r")))
    place.change = keep(**{element: PERSON[element]})
    error = place.fails(GateError, max_concurrent_requests=1)
    assert (error.reference, error.exit_code) == ("residual-identifiers", 5)
    assert path in error.message
    assert "1 line)" in error.message or element == "birthDate"


def test_a_value_is_found_wherever_it_stands_also_escaped_and_a_city_is_none(place: Place) -> None:
    umlaut = f"Müller-{CANARY}"
    place.put("a.ndjson", bundle(patient("p", name=[{"family": umlaut}], address=[{"city": "Bonn"}]), observation("o")))
    place.change = lambda answer: (
        json.loads(
            json.dumps(keep(address=[{"city": "Bonn"}])(answer)).replace('"Observation"', '"Observation", "note": []')
        )
        | {"entry": [answer["entry"][0], {"resource": observation("o9", "x", note=[{"text": umlaut}])}]}
    )
    error = place.fails(GateError)
    assert "Observation.note.text (1 line)" in error.message
    assert "city" not in error.message


def test_what_is_kept_on_purpose_is_counted_and_judged_again_without_a_request(place: Place) -> None:
    place.put("a.ndjson", bundle(patient("p", **PERSON)))
    place.change = keep(identifier=PERSON["identifier"])
    place.fails(GateError)
    with place.service() as url:
        before = len(place.requests)
        for keys in ({"kept_identifiers": ["http://mrn"]}, {"kept_identifiers": ["Patient.identifier.value"]},
                     {"residual_identifiers": "warn"}):  # fmt: skip
            report = place.run(url, **keys)
            assert len(place.requests) - before <= 1  # it is another service than before: once
            kept = report.identifying if "residual_identifiers" in keys else report.kept_identifiers
            assert kept == {"Patient.identifier.value": "1 lines"}
            assert gate(place.context, report) is None
        with pytest.raises(GateError):
            place.run(url)
        assert isinstance(gate(place.context, report), GateError)


def test_a_birth_date_that_few_lines_keep_is_a_shift_of_zero(place: Place) -> None:
    place.put("a.ndjson", *[bundle(patient(f"p{n}", birthDate=f"1970-01-{n % 28 + 1:02}")) for n in range(40)])
    kept = iter(range(1))
    place.change = lambda answer: keep(birthDate="1970-01-01")(answer) if next(kept, None) is not None else None
    with place.service() as url:
        report = place.run(url, max_concurrent_requests=1)
    assert report.identifying is None


def shifted(answer: Json, *but: str) -> Json:
    for entry in answer["entry"]:
        one = entry["resource"]
        for key, value in one.items():
            if key in ("issued", "effectiveDateTime") and key not in but:
                one[key] = value.replace("2020-05", "2020-06")
    return answer


def test_dates_that_stay_while_others_move_and_what_rules_do_badly_are_warnings_by_path(place: Place) -> None:
    dated = {"effectiveDateTime": "2020-05-05", "issued": "2020-05-06T10:00:00Z"}
    place.put("a.ndjson", *[bundle(patient("p"), observation("o", **dated)) for _ in range(3)])

    def change(answer: Json) -> Json:
        shifted(answer, "issued")
        answer["entry"][1]["resource"]["subject"] = {"reference": "abc"}
        answer["entry"][0]["resource"]["id"] = "p"
        return answer

    place.change = change
    with place.service() as url:
        report = place.run(url)
    told = "\n".join(report.warnings)
    assert "Observation.issued (3 lines)" in told
    assert "have lost their type, so they lead nowhere: Observation.subject.reference (3 lines)" in told
    assert "keep their original id: Patient (3 lines)" in told
    assert "effectiveDateTime" not in told


def test_lines_whose_dates_moved_or_stayed_are_counted_without_those_of_nobody(place: Place) -> None:
    dated = bundle(patient("p"), observation("o", effectiveDateTime="2020-05-05"))
    undated = bundle(patient("q"), observation("r", effectiveDateTime="2021-05-05"))
    place.put("a.ndjson", dated, undated, resource("Medication", "m", meta={"lastUpdated": "2020-05-05T10:00:00Z"}))
    place.change = shifted
    with place.service() as url:
        place.run(url)
    done = json.loads((place.directory / ".done/2/a.json").read_text())
    assert done["tallies"]["dates"] == {"moved": 1, "unmoved": 1}


def test_a_file_of_which_nothing_is_left_ends_the_step(place: Place) -> None:
    place.put("a.ndjson", bundle(patient("p", gender="male"), observation("o")))
    place.change = lambda answer: (
        answer | {"entry": [{"resource": {"resourceType": e["resource"]["resourceType"]}} for e in answer["entry"]]}
    )
    error = place.fails(SluiceError)
    assert (error.reference, error.context) == ("everything-removed", "a.ndjson.zst")


def test_a_resource_that_was_a_narrative_alone_is_not_a_file_of_which_nothing_is_left(place: Place) -> None:
    told = {"status": "generated", "div": "<div>Put rendering here</div>"}
    place.put("a.ndjson", bundle(resource("Basic", "b", text=told)))
    place.change = lambda answer: (
        answer | {"entry": [{"resource": {"resourceType": e["resource"]["resourceType"]}} for e in answer["entry"]]}
    )
    with place.service() as url:
        assert place.run(url).resources_out == 1


def test_a_line_passes_a_dozen_modules(place: Place) -> None:
    """Counted are the modules of which a function gets the bytes of a line, of its answer, or of a resource in one."""
    passed: set[str] = set()

    def called(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("tasks."):
            values = [value for value in frame.f_locals.values() if isinstance(value, bytes | Raw)]
            if any(b"o1-of-line" in bytes(value) for value in values):
                passed.add(name)

    place.put("a.ndjson", identified("b1", patient("p1"), observation("o1-of-line")))
    with place.service() as url:
        threading.setprofile(called)
        sys.setprofile(called)
        try:
            place.run(url)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    assert {"tasks.pseudonymizer.answers", "tasks.shared.files.part_file"} < passed
    assert len(passed) <= 12, sorted(passed)
