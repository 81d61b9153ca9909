"""Reading of an OperationOutcome, and the parts that may be shown (document 3 §1 and §6)."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.validation.chunks import ResourcePlace
from tasks.validation.findings import NotAnOutcomeError, Tally, ValidationIssue, read_outcome
from tests.peers.data import CANARY
from tests.peers.services import issue, outcome


def one(**fields: Any) -> ValidationIssue:
    [found] = read_outcome(outcome({"severity": "error", "code": "structure", **fields}))
    return found


@pytest.mark.parametrize(
    ("severity", "counts"),
    [("fatal", True), ("error", True), ("warning", False), ("information", False), ("success", False)],
)
def test_error_and_fatal_count_as_findings(severity: str, counts: bool) -> None:
    assert one(severity=severity).is_finding is counts


@pytest.mark.parametrize(
    ("place", "entry", "element"),
    [
        ("Bundle.entry[3].resource.ofType(Patient).name[0].family", 3, ".name[0].family"),
        ("Bundle.entry[3].resource/*Patient/x-1*/.name", 3, ".name"),
        ("Bundle.entry[3].resource", 3, ""),
        ("Bundle.entry[3].resource.name", 3, ".name"),
        ("Bundle.entry[12].fullUrl", 12, ".fullUrl"),
        ("Bundle.entry[0]", 0, ""),
        ("/f:Bundle/f:entry[4]/f:resource/f:Patient/f:name[1]", 3, "/f:name[1]"),
        ("/f:Bundle/f:entry[1]", 0, ""),
    ],
)
def test_the_spellings_of_a_place_in_a_bundle(place: str, entry: int, element: str) -> None:
    for where in ({"expression": [place]}, {"location": [place]}, {"expression": ["x"], "location": [place]}):
        assert one(**where).entries == {entry: element}


def test_every_entry_that_an_issue_names_is_known_and_other_places_are_kept() -> None:
    found = one(expression=["Bundle.entry[1].resource.a", "Bundle.entry[2]", "Bundle.entry[1].resource.b", None])
    assert found.entries == {1: ".a", 2: ""}
    assert one(location=["Line[1] Col[7]"]).elsewhere == "Line[1] Col[7]"
    assert one(expression=["Bundle"], location=["Line[1] Col[7]"]).elsewhere == "Bundle"


MESSAGE_ID = "http://hl7.org/fhir/StructureDefinition/operationoutcome-message-id"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"details": {"coding": [{"code": "Validation_VAL_Profile_Minimum"}]}}, "Validation_VAL_Profile_Minimum"),
        ({"details": {"coding": [{"system": "x"}, {"code": "1006"}]}}, "1006"),
        ({"extension": [{"url": MESSAGE_ID, "valueCode": "Terminology_TX_NoValid_16"}]}, "Terminology_TX_NoValid_16"),
        ({"extension": [{"url": MESSAGE_ID, "valueString": "http://x/Patient#pat-1"}]}, "pat-1"),
        ({"extension": [{"url": MESSAGE_ID, "valueCode": f"Rule ref-1: '{CANARY}' Failed"}]}, "ref-1"),
        ({"extension": [{"url": "http://x/line", "valueInteger": 5}]}, ""),
        ({"details": {"text": CANARY}}, ""),
        ({"details": {"coding": [{"code": f"text with {CANARY}"}]}}, ""),
        ({"details": {"coding": [{"code": 5, "display": CANARY}]}}, ""),
    ],
)
def test_a_message_id_is_a_code_and_never_free_text(fields: dict[str, Any], expected: str) -> None:
    found = one(**fields)
    assert found.message_id == expected
    assert found.message_code == f"structure {expected}".rstrip()


def test_a_code_that_fhir_does_not_know_is_not_shown() -> None:
    assert one(code=CANARY).code == "other"
    assert one(code=None).code == "other"


def test_texts_are_out_of_sight() -> None:
    assert CANARY not in repr(read_outcome(outcome(issue(entry=1), issue(location=[CANARY]))))


@pytest.mark.parametrize(
    "body", [b'{"resourceType":"OperationOutcome"}', b'{"resourceType":"OperationOutcome","issue":[]}']
)
def test_an_outcome_without_issues_finds_nothing(body: bytes) -> None:
    assert read_outcome(body) == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"resourceType":"OperationOutcome","issue":{}}',
        b'{"resourceType":"OperationOutcome","issue":[{}]}',
        b'{"resourceType":"OperationOutcome","issue":[{"severity":"Canary"}]}',
        b'{"resourceType":"OperationOutcome","issue":[{"severity":"error","expression":"x"}]}',
    ],
)
def test_what_is_no_operation_outcome_is_no_answer_and_is_not_quoted(body: bytes) -> None:
    with pytest.raises(NotAnOutcomeError) as caught:
        read_outcome(body)
    assert "Canary" not in str(caught.value)
    assert caught.value.__cause__ is None


def place(entry: int) -> ResourcePlace | None:
    return ResourcePlace(entry + 1, None, "Patient" if entry else "Encounter", "x") if entry < 3 else None


def test_findings_are_counted_by_severity_type_and_code_and_resources_once() -> None:
    tally = Tally()
    several = issue(expression=["Bundle.entry[0]", "Bundle.entry[1].a"], code="invariant")
    tally.add(
        read_outcome(
            outcome(
                issue(entry=1), issue("fatal", entry=1), several, issue("warning", entry=2), issue(), issue(entry=9)
            )
        ),
        place,
    )
    assert (tally.issues, tally.findings, tally.resources) == (6, 5, 2)
    assert tally.severities == {"error": 4, "fatal": 1, "warning": 1}
    assert tally.types == {"Patient": 3, "Encounter": 1, "unplaced": 2}
    assert tally.codes == {"structure": 4, "invariant": 1}
