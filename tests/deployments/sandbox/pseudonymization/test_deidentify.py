"""Assignment of elements to rules."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.sandbox.pseudonymization.problem import MalformedResourceError, ProcessingFailureError
from tests.conftest import examples
from tests.deployments.sandbox.pseudonymization.conftest import apply, labelled, labels, raw, rule, rules

PATIENT = {
    "resourceType": "Patient",
    "id": "p1",
    "identifier": [
        {"type": {"coding": [{"system": "urn:v2", "code": "MR"}]}, "system": "urn:mr", "value": "4711"},
        {"type": {"coding": [{"system": "urn:v2", "code": "SS"}]}, "system": "urn:ss", "value": "0815"},
    ],
    "name": [{"use": "official", "family": "Muster", "given": ["Erika", "Maria"]}],
    "contact": [{"name": {"family": "Anders"}, "address": {"city": "Ort", "country": "DE"}}],
    "gender": "female",
}


def test_without_rules_nothing_changes() -> None:
    assert labelled(rules(), bundle(PATIENT)) == bundle(PATIENT)


def test_the_first_rule_that_matches_an_element_handles_it() -> None:
    keep, redact = rule("Patient.name", "keep"), rule("nodesByType('HumanName')", "redact")
    assert apply(rules(keep, redact), PATIENT)["name"] == PATIENT["name"]
    assert "name" not in apply(rules(redact, keep), PATIENT)


def test_a_rule_handles_everything_below_its_element() -> None:
    done = apply(rules(rule("Patient.contact", "redact"), rule("nodesByType('Address').country", "keep")), PATIENT)
    assert "contact" not in done


def test_what_an_earlier_rule_handled_inside_stays() -> None:
    done = apply(rules(rule("nodesByType('Address').country", "keep"), rule("Patient.contact", "redact")), PATIENT)
    assert done["contact"] == [{"address": {"country": "DE"}}]


def test_what_becomes_empty_is_taken_out() -> None:
    done = apply(rules(rule("nodesByType('HumanName')", "redact")), PATIENT)
    assert "name" not in done
    assert done["contact"] == [{"address": {"city": "Ort", "country": "DE"}}]


def test_parameters_in_a_bundle_are_a_resource_like_others() -> None:
    parameters = {"resourceType": "Parameters", "parameter": [{"name": "about", "resource": PATIENT}]}
    done = apply(rules(rule("nodesByType('HumanName')", "redact")), bundle(parameters))
    kept = done["entry"][0]["resource"]["parameter"][0]["resource"]
    assert (kept["gender"], "name" in kept) == ("female", False)


def test_what_no_rule_matches_stays_byte_for_byte() -> None:
    text = b'{"resourceType":"Patient","id":"x","active":true,"name":[{"family":"M\xc3\xbcster"}]}'
    assert raw(rules(rule("Patient.photo", "redact")), text) == text


@pytest.mark.parametrize("text", ["1.50", "1E2", "1e-7", "-0.0", "-0", "0", "12345678901234567890123", "1e400"])
def test_numbers_beside_what_a_rule_changes_keep_their_spelling(text: str) -> None:
    document = f'{{"resourceType":"Observation","id":"a","valueQuantity":{{"value":{text},"unit":"mg"}}}}'
    done = raw(rules(rule("Observation.value.unit", "redact")), document.encode())
    assert done.startswith(f'{{"resourceType":"Observation","id":"a","valueQuantity":{{"value":{text}}}'.encode())


def test_resource_and_domainresource_stand_for_every_type() -> None:
    for general in ("Resource", "DomainResource"):
        file = rules(rule(f"{general}.id", "redact"))
        assert "id" not in apply(file, PATIENT)
        assert "id" not in apply(file, {"resourceType": "Bundle", "id": "b", "type": "collection"})


def test_a_type_alone_is_the_whole_resource() -> None:
    assert apply(rules(rule("Patient", "redact")), PATIENT) == {"resourceType": "Patient"}
    observation = {"resourceType": "Observation", "id": "o", "status": "final"}
    assert apply(rules(rule("Patient", "redact")), observation) == observation


def test_remove_on_the_resource_that_was_sent_empties_it() -> None:
    assert apply(rules(rule("Patient", "remove")), PATIENT) == {"resourceType": "Patient"}


def test_a_name_stands_for_every_choice_of_type() -> None:
    file = rules(rule("Observation.value", "redact"))
    for key, value in {"valueString": "x", "valueQuantity": {"value": 1}, "valueDateTime": "2020"}.items():
        assert apply(file, {"resourceType": "Observation", "status": "final", key: value}) == {
            "resourceType": "Observation",
            "status": "final",
        }


def test_nodes_by_type_knows_the_types_of_choices_backbones_and_recursion() -> None:
    questionnaire = {
        "resourceType": "QuestionnaireResponse",
        "status": "completed",
        "item": [{"linkId": "1", "item": [{"linkId": "2", "answer": [{"valueDate": "2020-01-01"}]}]}],
    }
    done = apply(rules(rule("nodesByType('date')", "redact")), questionnaire)
    assert done["item"] == [{"linkId": "1", "item": [{"linkId": "2"}]}]


def test_nodes_by_type_takes_that_type_only() -> None:
    resource = {
        "resourceType": "FamilyMemberHistory",
        "status": "partial",
        "condition": [{"code": {"text": "x"}, "onsetAge": {"value": 40}}],
    }
    assert apply(rules(rule("nodesByType('Quantity')", "redact")), resource) == resource
    assert "onsetAge" not in apply(rules(rule("nodesByType('Age')", "redact")), resource)["condition"][0]


def test_nodes_by_name() -> None:
    done = apply(rules(rule("nodesByName('family')", "redact")), PATIENT)
    assert done["name"] == [{"use": "official", "given": ["Erika", "Maria"]}]
    assert "name" not in done["contact"][0]


def test_nodes_by_type_below_an_element() -> None:
    done = apply(rules(rule("Patient.contact.nodesByType('HumanName')", "redact")), PATIENT)
    assert done["name"] == PATIENT["name"]
    assert "name" not in done["contact"][0]


def test_a_criterion_decides_element_by_element() -> None:
    path = "Patient.identifier.where(type.coding.where(system='urn:v2' and code='MR').exists()).value"
    values = [item.get("value") for item in apply(rules(rule(path, "redact")), PATIENT)["identifier"]]
    assert values == [None, "0815"]


def test_a_criterion_on_primitive_values() -> None:
    done = apply(rules(rule("Patient.name.given.where($this = 'Maria')", "redact")), PATIENT)
    assert done["name"][0]["given"] == ["Erika"]


def test_a_criterion_sees_what_earlier_rules_left() -> None:
    redact_codes = rule("nodesByType('Coding').code", "redact")
    by_code = rule("Patient.identifier.where(type.coding.code = 'MR').value", "redact")
    assert [item.get("value") for item in apply(rules(redact_codes, by_code), PATIENT)["identifier"]] == [
        "4711",
        "0815",
    ]
    assert [item.get("value") for item in apply(rules(by_code, redact_codes), PATIENT)["identifier"]] == [None, "0815"]


def test_a_criterion_that_fails_leaves_the_element_to_the_next_rule() -> None:
    file = rules(
        rule("Patient.identifier.where(system='urn:mr').value", "keep"),
        rule("nodesByType('Identifier').value", "redact"),
    )
    assert [item.get("value") for item in apply(file, PATIENT)["identifier"]] == ["4711", None]


def test_criteria_on_what_nodes_by_type_finds() -> None:
    extension = [{"url": "http://a", "valueString": "1"}, {"url": "http://b", "valueString": "2"}]
    resource = {"resourceType": "Patient", "extension": extension, "name": [{"extension": extension}]}
    done = apply(rules(rule("nodesByType('Extension').where(url='http://a')", "redact")), resource)
    assert done["extension"] == done["name"][0]["extension"] == extension[1:]


@pytest.mark.parametrize("path", ["Patient.extension('http://a')", "Patient.extension.where(url = 'http://a')"])
def test_extensions_by_url(path: str) -> None:
    extension = [{"url": "http://a", "valueString": "1"}, {"url": "http://b", "valueString": "2"}]
    done = apply(rules(rule(path, "redact")), {"resourceType": "Patient", "extension": extension})
    assert done["extension"] == extension[1:]


@pytest.mark.parametrize("path", ["Observation.value as Quantity", "Observation.value.ofType(Quantity)"])
def test_of_type(path: str) -> None:
    file = rules(rule(path, "redact"))
    assert "valueQuantity" not in apply(file, {"resourceType": "Observation", "valueQuantity": {"value": 1}})
    assert "valueString" in apply(file, {"resourceType": "Observation", "valueString": "x"})


def test_alternatives() -> None:
    done = apply(rules(rule("(Patient.gender | Patient.name.given)", "redact")), PATIENT)
    assert "gender" not in done
    assert done["name"] == [{"use": "official", "family": "Muster"}]


# Primitive values and their companions


def test_extensions_of_a_primitive_value_are_below_it() -> None:
    resource = {"resourceType": "Patient", "birthDate": "1990-01-01", "_birthDate": {"extension": [{"url": "u"}]}}
    assert apply(rules(rule("Patient.birthDate", "redact")), resource) == {"resourceType": "Patient"}


def test_an_extension_of_a_primitive_value_is_found_by_its_type() -> None:
    beside = {"extension": [{"url": "http://place", "valueAddress": {"city": "Ort"}}]}
    resource = {"resourceType": "Patient", "birthDate": "1990-01-01", "_birthDate": beside}
    done = apply(rules(rule("nodesByType('Address')", "redact")), resource)
    assert done == {
        "resourceType": "Patient",
        "birthDate": "1990-01-01",
        "_birthDate": {"extension": [{"url": "http://place"}]},
    }


def test_values_and_extensions_of_a_list_stay_side_by_side() -> None:
    name = {"given": ["A", "B", "C"], "_given": [None, {"id": "x"}, {"id": "y"}]}
    done = apply(
        rules(rule("Patient.name.given.where($this = 'A')", "remove")), {"resourceType": "Patient", "name": [name]}
    )
    assert done["name"] == [{"given": ["B", "C"], "_given": [{"id": "x"}, {"id": "y"}]}]


def test_a_value_that_goes_leaves_a_null_beside_what_stays() -> None:
    name = {"given": ["A", "B"], "_given": [{"id": "x"}, None]}
    file = rules(rule("Patient.name.given.id", "keep"), rule("Patient.name.given", "redact"))
    done = apply(file, {"resourceType": "Patient", "name": [name]})
    assert done["name"] == [{"_given": [{"id": "x"}]}]


# Bundles and contained resources


def bundle(*resources: dict[str, Any], **fields: Any) -> dict[str, Any]:
    entries = [{"fullUrl": f"http://x/{r['resourceType']}/{r.get('id')}", "resource": r} for r in resources]
    return {"resourceType": "Bundle", "id": "b", "type": "collection", "entry": entries} | fields


def test_every_resource_of_a_bundle_is_processed_by_the_rules_of_its_type() -> None:
    observation = {"resourceType": "Observation", "id": "o", "status": "final"}
    done = apply(
        rules(rule("Patient.id", "redact"), rule("Observation.status", "redact")), bundle(PATIENT, observation)
    )
    assert "id" not in done["entry"][0]["resource"]
    assert done["entry"][1]["resource"] == {"resourceType": "Observation", "id": "o"}
    assert done["id"] == "b"


def test_bundles_in_bundles() -> None:
    done = apply(rules(rule("Patient.id", "redact")), bundle(bundle(PATIENT)))
    assert "id" not in done["entry"][0]["resource"]["entry"][0]["resource"]


def test_contained_resources_are_processed_too() -> None:
    resource = {"resourceType": "Observation", "id": "o", "contained": [{"resourceType": "Patient", "id": "p"}]}
    assert apply(rules(rule("Patient.id", "redact")), resource)["contained"] == [{"resourceType": "Patient"}]


def test_rules_for_the_bundle_stop_at_the_resources() -> None:
    done = apply(rules(rule("Bundle.entry", "redact")), bundle(PATIENT))
    assert done["entry"] == [{"resource": PATIENT}]


def test_rules_may_lead_from_the_bundle_into_a_resource_and_run_before_its_own() -> None:
    own, outer = rule("Patient.gender", "keep"), rule("Bundle.entry.resource.gender", "redact")
    assert "gender" not in apply(rules(own, outer), bundle(PATIENT))["entry"][0]["resource"]
    assert apply(rules(own, outer), PATIENT)["gender"] == "female"


def test_a_rule_may_handle_the_whole_resource_of_an_entry() -> None:
    done = apply(rules(rule("Bundle.entry.resource", "redact")), bundle(PATIENT, type="batch"))
    assert done["entry"][0]["resource"] == {"resourceType": "Patient"}


def test_remove_takes_the_element_with_the_resource_in_it() -> None:
    observation = {"resourceType": "Observation", "id": "o"}
    done = apply(rules(rule("Bundle.entry.where(resource is Patient)", "remove")), bundle(PATIENT, observation))
    assert [entry["resource"]["id"] for entry in done["entry"]] == ["o"]


def test_remove_takes_the_resource_out_of_its_entry() -> None:
    done = apply(rules(rule("Patient", "remove")), bundle(PATIENT))
    assert done["entry"] == [{"fullUrl": "http://x/Patient/p1"}]


def test_a_criterion_holds_for_a_type_and_not_for_a_spelling() -> None:
    resource = {"resourceType": "Observation", "valueString": "2020", "effectiveDateTime": "2020"}
    file = rules(rule("nodesByType('string').where($this = '2020')", "redact"), rule("Observation.effective", "keep"))
    done = apply(file, resource)
    assert done == {"resourceType": "Observation", "effectiveDateTime": "2020"}


# Labels


def test_labels_say_what_was_done_in_each_resource_and_sum_up_in_the_bundle() -> None:
    observation = {
        "resourceType": "Observation",
        "id": "o",
        "meta": {"security": [{"code": "redacted"}]},
        "status": "x",
    }
    file = rules(rule("Patient.id", "cryptoHash"), rule("Observation.status", "redact"), rule("Patient.gender", "keep"))
    done = labelled(file, bundle(PATIENT, observation))
    assert labels(done["entry"][0]["resource"]) == ["CRYTOHASH"]
    assert labels(done["entry"][1]["resource"]) == ["redacted"]
    assert labels(done) == ["REDACTED", "CRYTOHASH"]


def test_a_resource_that_nothing_changed_gets_no_label() -> None:
    assert "meta" not in labelled(rules(rule("Patient.gender", "keep")), PATIENT)


def test_contained_resources_get_no_label_of_their_own() -> None:
    resource = {"resourceType": "Observation", "contained": [{"resourceType": "Patient", "id": "p"}]}
    done = labelled(rules(rule("Patient.id", "redact")), resource)
    assert "meta" not in done["contained"][0]
    assert labels(done) == ["REDACTED"]


# Malformed resources


@pytest.mark.parametrize(
    "resource",
    [
        {"resourceType": "Wombat"},
        {"resourceType": "Element"},
        {"resourceType": "Patient", "nonsense": 1},
        {"resourceType": "Patient", "name": "Muster"},
        {"resourceType": "Patient", "name": ["Muster"]},
        {"resourceType": "Patient", "gender": {"text": "x"}},
        {"resourceType": "Patient", "_gender": "x"},
        {"resourceType": "Patient", "gender": "x", "_gender": ["x"]},
        {"resourceType": "Bundle", "entry": [{"resource": {"id": "x"}}]},
        {"resourceType": "Bundle", "entry": [{"resource": "x"}]},
        {"resourceType": "Observation", "contained": [None]},
        {"resourceType": "Observation", "valueWombat": 1},
        {"resourceType": "Patient", "meta": "Muster"},
        {"resourceType": "Patient", "meta": {"security": "Muster"}},
    ],
)
def test_what_is_no_r4_resource_is_refused_without_quoting_it(resource: dict[str, Any]) -> None:
    with pytest.raises(MalformedResourceError) as refused:
        apply(rules(rule("Resource", "redact")), resource)
    assert "Muster" not in str(refused.value)


def test_a_criterion_that_cannot_be_computed_fails_without_quoting_data() -> None:
    file = rules(rule("Patient.name.where(given.first().substring(given.last()) = 'A')", "redact"))
    with pytest.raises(ProcessingFailureError) as failed:
        apply(file, PATIENT)
    assert "Erika" not in str(failed.value)


def test_nesting_without_end_is_refused() -> None:
    deep = b'{"resourceType":"Patient"' + b',"extension":[{"url":"u"' * 600 + b"}]" * 600 + b"}"
    with pytest.raises(MalformedResourceError):
        raw(rules(rule("nodesByType('Address')", "redact")), deep)


# The rules against a simple implementation of the same rules

SAMPLE = {
    "resourceType": "Patient",
    "id": "s1",
    "identifier": [{"system": "s2", "value": "s3", "assigner": {"display": "s4"}}],
    "name": [{"family": "s5", "given": ["s6", "s7"], "period": {"start": "s8"}}, {"family": "s9"}],
    "contact": [{"name": {"family": "s10", "given": ["s11"]}, "address": {"city": "s12", "period": {"start": "s13"}}}],
    "generalPractitioner": [{"reference": "s14", "identifier": {"value": "s15"}}],
}
TYPES = {
    "id": "id", "identifier": "Identifier", "system": "uri", "value": "string", "assigner": "Reference",
    "display": "string", "name": "HumanName", "family": "string", "given": "string", "period": "Period",
    "start": "dateTime", "contact": "BackboneElement", "address": "Address", "city": "string",
    "generalPractitioner": "Reference", "reference": "string",
}  # fmt: skip
Node = tuple[tuple[str | int, ...], str]
"""Return the path of a node and its name."""


def nodes(value: Any, at: tuple[str | int, ...] = (), name: str = "Patient") -> list[Node]:
    """Return all nodes of the sample, from the top down; items of lists are nodes, lists are not."""
    if isinstance(value, list):
        return [node for index, item in enumerate(value) for node in nodes(item, (*at, index), name)]
    own: list[Node] = [(at, name)]
    if isinstance(value, dict):
        for key, item in value.items():
            own += nodes(item, (*at, key), key) if key != "resourceType" else []
    return own


def below(node: Node, other: Node) -> bool:
    return other[0][: len(node[0])] == node[0]


def children(node: Node, name: str) -> list[Node]:
    return [
        other for other in nodes(SAMPLE)
        if other != node and below(node, other) and other[1] == name
        and sum(isinstance(step, str) for step in other[0][len(node[0]) :]) == 1
    ]  # fmt: skip


def matches(path: str) -> list[Node]:
    """Return the nodes at a path, step by step as in the specification."""
    found = nodes(SAMPLE)[:1]
    for step in path.removeprefix("Patient.").split("."):
        if step.startswith("nodesBy"):
            wanted = step.split("'")[1]
            by_type = step.startswith("nodesByType")
            found = [
                other for node in found for other in nodes(SAMPLE)
                if below(node, other) and (TYPES.get(other[1]) if by_type else other[1]) == wanted
            ]  # fmt: skip
        else:
            found = [child for node in found for child in children(node, step)]
    return found


def rule_by_rule(paths: list[str]) -> dict[tuple[str | int, ...], int]:
    """Return the rule that handles each node, rule by rule, without nodes that were handled before."""
    handled: dict[tuple[str | int, ...], int] = {}
    for number, path in enumerate(paths):
        for match in matches(path):
            for other in nodes(SAMPLE):
                if below(match, other):
                    handled.setdefault(other[0], number)
    return handled


NAMES = st.sampled_from(sorted(TYPES))
STEPS = st.one_of(
    NAMES, NAMES.map(lambda name: f"nodesByName('{name}')"), NAMES.map(lambda name: f"nodesByType('{TYPES[name]}')")
)
PATHS = st.one_of(
    st.lists(STEPS, min_size=1, max_size=4).map(".".join),
    st.sampled_from([node[0] for node in nodes(SAMPLE)[1:]]).map(
        lambda at: "Patient." + ".".join(step for step in at if isinstance(step, str))
    ),
)


@pytest.mark.slow
@settings(max_examples=examples(120), deadline=None)
@given(paths=st.lists(PATHS, min_size=1, max_size=6))
def test_the_first_rule_that_finds_a_node_or_one_above_it_handles_it(paths: list[str]) -> None:
    file = rules(*(rule(path, "pseudonymize", domain=f"r{number}") for number, path in enumerate(paths)))
    done = apply(file, json.loads(json.dumps(SAMPLE).replace('"s14"', '"Patient/s14"')))
    expected = rule_by_rule(paths)
    for at, _ in nodes(SAMPLE):
        value: Any = done
        for step in at:
            value = value[step]
        if isinstance(value, str):
            number = value.removeprefix("Patient/").partition("-")[0].removeprefix("r")
            assert (int(number) if number.isdigit() else None) == expected.get(at), (paths, at)
