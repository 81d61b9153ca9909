"""The base invariants: satisfied, broken, or listed as not checked (document 3 §6, ``4-product.md`` §8)."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fhirpathpy
import pytest
from fhirpathpy.models import models

from deployments.sandbox.common.definitions.schema import Definition, Invariant, load_schema
from deployments.sandbox.common.fhirpath import EvaluationError, element
from deployments.sandbox.validation.invariants import (
    EvaluationScope,
    adapted_to_library,
    compile_condition,
    holds,
    not_evaluable,
)
from tests.deployments.sandbox.validation.instances import instance
from tests.deployments.sandbox.validation.support import OBSERVATION, PATIENT, Json, bundle, findings, issues, message

INVARIANTS = {each.name: each for each in load_schema().invariants}
UCUM = "http://unitsofmeasure.org"
CONDITION: Json = {
    "resourceType": "Condition",
    "subject": {"display": "x"},
    "clinicalStatus": {
        "coding": [{"system": "http://terminology.hl7.org/CodeSystem/condition-clinical", "code": "active"}]
    },
}
CONSENT: Json = {
    "resourceType": "Consent",
    "status": "active",
    "scope": {"text": "x"},
    "category": [{"text": "x"}],
    "policy": [{"uri": "urn:oid:1.2.3"}],
}
ENTERED_IN_ERROR = {
    "coding": [{"system": "http://terminology.hl7.org/CodeSystem/condition-ver-status", "code": "entered-in-error"}]
}
COMPOSITION: Json = {
    "resourceType": "Composition",
    "status": "final",
    "type": {"text": "x"},
    "date": "2024",
    "author": [{"display": "x"}],
    "title": "x",
}
STRUCTURE_DEFINITION: Json = {
    "resourceType": "StructureDefinition",
    "url": "http://x.org",
    "name": "X",
    "status": "draft",
    "kind": "logical",
    "abstract": False,
    "type": "http://x.org",
    "baseDefinition": "http://x.org",
    "snapshot": {"element": [{"id": "X", "path": "X", "min": 0, "max": "-1", "definition": "x"}]},
}
LAB = {"value": 5, "unit": "g/dl"}


def quantity(**parts: Any) -> Json:
    return OBSERVATION | {"valueQuantity": parts}


def document(first: Json, **envelope: Any) -> Json:
    return {"resourceType": "Bundle", "type": "document", "entry": [{"resource": first}], **envelope}


def period(start: str, end: str) -> Json:
    return {"resourceType": "Patient", "name": [{"text": "x", "period": {"start": start, "end": end}}]}


def questionnaire(**answer: Any) -> Json:
    """Return a question that is enabled if another one has an answer, or has that answer."""
    asked = {"linkId": "2", "type": "string", "enableWhen": [{"question": "1", "operator": "exists"} | answer]}
    return {"resourceType": "Questionnaire", "status": "draft", "item": [{"linkId": "1", "type": "string"}, asked]}


BROKEN: dict[str, tuple[Json, str]] = {
    "obs-6": (OBSERVATION | {"valueQuantity": LAB, "dataAbsentReason": {"text": "x"}}, "Observation"),
    "obs-7": (
        OBSERVATION | {"valueQuantity": LAB, "component": [{"code": OBSERVATION["code"], "valueString": "x"}]},
        "Observation",
    ),
    "obs-3": (OBSERVATION | {"referenceRange": [{"age": {"low": LAB}}]}, "Observation.referenceRange[0]"),
    "pat-1": (PATIENT | {"contact": [{"gender": "male"}]}, "Patient.contact[0]"),
    "qty-3": (quantity(value=1, code="g/dl"), "Observation.value.ofType(Quantity)"),
    "per-1": (period("2024-02-01", "2024-01-31"), "Patient.name[0].period"),
    "ext-1": (
        PATIENT
        | {"extension": [{"url": "http://x.org", "valueCode": "a", "extension": [{"url": "b", "valueCode": "c"}]}]},
        "Patient.extension[0]",
    ),
    "ref-1": (OBSERVATION | {"subject": {"reference": "#nobody"}}, "Observation.subject"),
    "att-1": (PATIENT | {"photo": [{"data": "QUJD"}]}, "Patient.photo[0]"),
    "rat-1": (OBSERVATION | {"valueRatio": {"numerator": LAB}}, "Observation.value.ofType(Ratio)"),
    "cpt-2": (PATIENT | {"telecom": [{"value": "0123"}]}, "Patient.telecom[0]"),
    "con-4": (CONDITION | {"abatementDateTime": "2024"}, "Condition"),
    "con-5": (CONDITION | {"verificationStatus": ENTERED_IN_ERROR}, "Condition"),
    "con-1": (CONDITION | {"stage": [{"type": {"text": "x"}}]}, "Condition.stage[0]"),
    "ppc-1": ({key: value for key, value in CONSENT.items() if key != "policy"}, "Consent"),
    "org-1": ({"resourceType": "Organization", "active": True}, "Organization"),
    "org-2": (
        {"resourceType": "Organization", "name": "x", "address": [{"use": "work"}, {"use": "home"}]},
        "Organization.address[1]",
    ),
    "dom-2": (
        OBSERVATION
        | {
            "contained": [PATIENT | {"id": "a", "contained": [PATIENT | {"id": "b"}], "link": []}],
            "subject": {"reference": "#a"},
        },
        "Observation",
    ),
    "dom-3": (OBSERVATION | {"contained": [PATIENT | {"id": "a"}]}, "Observation"),
    "dom-4": (
        OBSERVATION | {"contained": [PATIENT | {"meta": {"versionId": "1"}}], "subject": {"reference": "#p1"}},
        "Observation",
    ),
    "dom-5": (
        OBSERVATION
        | {
            "contained": [PATIENT | {"meta": {"security": [{"code": "x", "system": "http://x.org"}]}}],
            "subject": {"reference": "#p1"},
        },
        "Observation",
    ),
    "bdl-1": (bundle(PATIENT) | {"total": 1}, "Bundle"),
    "bdl-2": (bundle(PATIENT) | {"entry": [{"resource": PATIENT, "search": {"mode": "match"}}]}, "Bundle"),
    "bdl-3": (
        bundle(PATIENT) | {"entry": [{"resource": PATIENT, "request": {"method": "PUT", "url": "Patient/p1"}}]},
        "Bundle",
    ),
    "bdl-4": (bundle(PATIENT) | {"entry": [{"resource": PATIENT, "response": {"status": "200"}}]}, "Bundle"),
    "bdl-5": (bundle() | {"entry": [{"fullUrl": "http://x.org/Patient/1"}]}, "Bundle.entry[0]"),
    "bdl-7": (bundle() | {"entry": [{"fullUrl": "http://x.org/Patient/p1", "resource": PATIENT}] * 2}, "Bundle"),
    "bdl-8": (
        bundle() | {"entry": [{"fullUrl": "http://x.org/Patient/p1/_history/1", "resource": PATIENT}]},
        "Bundle.entry[0]",
    ),
    "bdl-9": (document(COMPOSITION, timestamp="2024-01-01T00:00:00Z"), "Bundle"),
    "bdl-10": (document(COMPOSITION, identifier={"system": "http://x.org", "value": "1"}), "Bundle"),
    "bdl-11": (
        document(PATIENT, timestamp="2024-01-01T00:00:00Z", identifier={"system": "http://x.org", "value": "1"}),
        "Bundle",
    ),
    "tim-1": (
        {
            "resourceType": "MedicationStatement",
            "status": "active",
            "subject": {"display": "x"},
            "medicationCodeableConcept": {"text": "x"},
            "dosage": [{"timing": {"repeat": {"duration": 3}}}],
        },
        "MedicationStatement.dosage[0].timing.repeat",
    ),
    "drt-1": (
        CONDITION
        | {"onsetRange": {"low": LAB}, "extension": [{"url": "http://x.org", "valueDuration": {"code": "d"}}]},
        "Condition.extension[0].value.ofType(Duration)",
    ),
    "que-7": (questionnaire(answerString="true"), "Questionnaire.item[1].enableWhen[0]"),
    "eld-3": (STRUCTURE_DEFINITION, "StructureDefinition.snapshot.element[0].max"),
}


@pytest.mark.parametrize(("key", "resource", "expression"), [(key, *case) for key, case in BROKEN.items()])
def test_a_broken_invariant_is_an_error_at_its_element(key: str, resource: Json, expression: str) -> None:
    found = [each for each in findings(resource) if each[2] == f"Invariant_{key}"]
    assert found == [("error", "invariant", f"Invariant_{key}", expression)]


KEPT: dict[str, Json] = {
    "a reference with an identifier only (ref-1)": OBSERVATION | {"subject": {"identifier": {"value": "1"}}},
    "a reference to a contained resource (ref-1, dom-3)": OBSERVATION
    | {"contained": [PATIENT], "subject": {"reference": "#p1"}},
    "a contained resource that refers to its container (dom-3)": OBSERVATION
    | {"contained": [PATIENT | {"link": [{"other": {"reference": "#"}, "type": "seealso"}]}]},
    "a contained definition named as canonical (dom-3)": {
        "resourceType": "CarePlan",
        "status": "active",
        "intent": "plan",
        "subject": {"display": "x"},
        "contained": [{"resourceType": "PlanDefinition", "id": "d", "status": "draft"}],
        "instantiatesCanonical": ["#d"],
    },
    "an open period (per-1)": PATIENT | {"name": [{"text": "x", "period": {"start": "2024"}}]},
    "a period within one day (per-1)": period("2024-01-31", "2024-01-31"),
    "a period of different precision (per-1)": period("2024", "2024-01-31"),
    "a period over a change of zone (per-1)": period("2024-03-31T01:00:00+01:00", "2024-03-31T03:00:00+02:00"),
    "a component of another code (obs-7)": OBSERVATION
    | {"valueQuantity": LAB, "component": [{"code": {"text": "y"}, "valueString": "x"}]},
    "a consent with a policy (ppc-1)": CONSENT,
    "a question that asks whether there is an answer (que-7)": questionnaire(answerBoolean=True),
    "a question that asks whether there is none (que-7)": questionnaire(answerBoolean=False),
    "a question that asks for an answer (que-7)": questionnaire(operator="=", answerString="x"),
    "the same fullUrl in two versions (bdl-7)": bundle()
    | {
        "entry": [
            {"fullUrl": "http://x.org/Patient/p1", "resource": PATIENT | {"meta": {"versionId": version}}}
            for version in "12"
        ]
    },
}


@pytest.mark.parametrize("resource", KEPT.values(), ids=KEPT.keys())
def test_a_kept_invariant_is_no_finding(resource: Json) -> None:
    assert findings(resource) == []


def test_an_invariant_that_is_a_warning_is_reported_as_one() -> None:
    library = {"resourceType": "Library", "name": "not a name", "status": "draft", "type": {"text": "x"}}
    assert findings(library) == [("warning", "invariant", "Invariant_lib-0", "Library")]


def test_the_invariants_of_an_entry_see_their_own_resource() -> None:
    found = findings(bundle(OBSERVATION, BROKEN["obs-7"][0]))
    assert found == [("error", "invariant", "Invariant_obs-7", "Bundle.entry[1].resource.ofType(Observation)")]


def test_what_the_library_cannot_evaluate_is_known_by_name() -> None:
    assert sorted(not_evaluable(tuple(INVARIANTS.values()))) == ["ctm-1", "rng-2", "txt-1", "txt-2"]


def test_rng_2_is_left_out_because_the_library_compares_no_quantities() -> None:
    low, high = {"value": 1, "system": UCUM, "code": "g"}, {"value": 2, "system": UCUM, "code": "g"}
    element = {"low": low, "high": high}
    with pytest.raises(EvaluationError):
        holds(INVARIANTS["rng-2"], EvaluationScope(element, "Range", element, element))


def test_every_other_invariant_can_be_compiled() -> None:
    for name in INVARIANTS.keys() - set(not_evaluable(tuple(INVARIANTS.values()))):
        element: Json = {}
        holds(INVARIANTS[name], EvaluationScope(element, "Element", element, element))


def test_an_invariant_that_fails_to_evaluate_is_a_note_and_not_passed_in_silence() -> None:
    odd = PATIENT | {"name": [{"text": "x", "period": {"start": {"a": 1}, "end": {"b": 2}}}]}
    broken = OBSERVATION | {"subject": {"reference": ["#a", "#b"]}}
    notes = [each for each in issues(bundle(odd, broken)) if message(each).startswith("Invariant_Not_Evaluated")]
    assert [(each["severity"], each["code"], message(each)) for each in notes] == [
        ("information", "informational", "Invariant_Not_Evaluated_ref-1")
    ]
    assert notes[0]["expression"] == ["Bundle.entry[1].resource.ofType(Observation).subject"]


def test_the_error_of_an_evaluation_quotes_nothing() -> None:
    element = {"reference": ["#Secret", "#Other"]}
    with pytest.raises(EvaluationError) as caught:
        holds(INVARIANTS["ref-1"], EvaluationScope(element, "Reference", element, element))
    assert "Secret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    for resource, _ in BROKEN.values():
        issues(resource)
    assert capfd.readouterr().out == ""


@functools.cache
def parsed(expression: str) -> Any:
    parse: Any = fhirpathpy.parse
    return parse(expression)


def _has_value(items: list[Any]) -> list[bool]:
    return [sum(not isinstance(each, dict | list) for each in items) == 1]


def whole(expression: str, scope: EvaluationScope) -> bool | None:
    """Return the library's own result for an expression."""
    apply: Any = fhirpathpy.apply_parsed_path
    known = {"resource": scope.resource, "rootResource": scope.root}
    options = {"userInvocationTable": {"hasValue": {"fn": _has_value, "arity": {0: []}}}}
    result = apply(element(scope.element, scope.path), parsed(expression), known, models["r4"], options)
    return None if not result else result != [False]


def owners() -> list[tuple[Invariant, Definition]]:
    """Return every evaluated invariant, with up to four of its types."""
    schema = load_schema()
    having: dict[str, list[Definition]] = {}
    for definition in schema.definitions.values():
        for each in definition.invariants:
            having.setdefault(each.name, []).append(definition)
    left_out = not_evaluable(schema.invariants)
    return [
        (INVARIANTS[name], definition)
        for name, definitions in having.items()
        if name not in left_out
        for definition in definitions[:: max(1, len(definitions) // 3)]
    ]


@pytest.mark.slow
def test_the_shortcuts_before_the_library_change_no_result() -> None:
    compared = 0
    for invariant, definition in owners():
        chance = random.Random(invariant.name)
        expression = adapted_to_library(invariant.expression)
        short = compile_condition(expression)
        for depth in (0, 1, 1, 1):
            element = instance(definition.name, chance, depth)
            scope = EvaluationScope(element, definition.path, element, element)
            try:
                expected = whole(expression, scope)
            except Exception:
                continue  # the library evaluates both sides, one of which it cannot
            assert short.decide(scope) is expected, (invariant.name, element)
            compared += 1
    assert compared > 600


@pytest.mark.slow
def test_results_are_the_same_in_several_threads_and_in_a_fresh_process() -> None:
    resources = [resource for resource, _ in BROKEN.values()] + list(KEPT.values())
    expected = [issues(each) for each in resources]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(issues, resources * 4)) == expected * 4
    script = (
        "from tests.deployments.sandbox.validation.support import findings\n"
        "from tests.deployments.sandbox.validation.test_invariants import KEPT\n"
        "assert findings(KEPT['a contained definition named as canonical (dom-3)']) == []\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[4], check=True, timeout=60)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a or b", [True, True, True, True, False, None, True, None, None]),
        ("a and b", [True, False, None, False, False, False, None, False, None]),
        ("a implies b", [True, False, None, True, True, True, True, None, None]),
    ],
)
def test_operators_follow_the_three_valued_logic_of_fhirpath(expression: str, expected: list[bool | None]) -> None:
    compiled = compile_condition(expression)
    truth = (True, False, None)
    found = []
    for a in truth:
        for b in truth:
            element = {key: value for key, value in (("a", a), ("b", b)) if value is not None}
            found.append(compiled.decide(EvaluationScope(element, "Element", element, element)))
    assert found == expected
