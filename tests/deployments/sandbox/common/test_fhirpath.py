"""The wrapper around the FHIRPath library: its trees give the same results as the library alone."""

from __future__ import annotations

from typing import Any

import fhirpathpy
import pytest
from fhirpathpy.models import models

from deployments.sandbox.common.fhirpath import ExpressionError, data_of, evaluate, nodes, read

PATIENT = {
    "resourceType": "Patient",
    "active": True,
    "name": [{"use": "usual", "family": "A", "given": ["x", "y"]}, {"use": "official", "family": "B"}],
    "contained": [{"resourceType": "Organization", "id": "o"}],
}


@pytest.mark.parametrize(
    "text",
    [
        "name.given.first()",
        "(name.where(use = 'official')).family",
        "name.select(given | family).count()",
        "((name[0]).given)[1]",
        "Patient.name.family.select($this & '!')",
        "contained.ofType(Organization).id",
        "contained.ofType(FHIR.Patient).id",
        "(contained.first() as Organization).id",
        "(1 + 2) * 3 - -(4)",
        "active and (name.exists() implies photo.empty())",
        "{}",
        "%resource.name.family",
    ],
)
def test_a_tree_without_nodes_that_only_group_means_the_same(text: str) -> None:
    known = {"resource": PATIENT}
    whole: Any = fhirpathpy.evaluate
    found = [data_of(item) for item in evaluate(read(text), [PATIENT], known, {})]
    assert found == whole(PATIENT, text, known, models["r4"])
    assert not [node for node in nodes(read(text)) if node["type"] in ("TermExpression", "ParenthesizedTerm")]


@pytest.mark.parametrize("text", ["", "name.", "name given", "name)", "where("])
def test_the_first_thing_that_the_grammar_does_not_know_ends_the_reading(text: str) -> None:
    with pytest.raises(ExpressionError, match="cannot be read"):
        read(text)
