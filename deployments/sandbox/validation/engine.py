"""Validate one body: structure, then invariants, then notes about unchecked rules.

Recommendations are not checked but named in every answer: a warning on nearly every resource would hide other findings.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from deployments.sandbox.common.definitions.schema import Invariant, Schema
from deployments.sandbox.common.fhirpath import EvaluationError
from deployments.sandbox.validation.invariants import EvaluationScope, holds, not_evaluable
from deployments.sandbox.validation.issue import ElementPlace, Message, ValidatorIssue
from deployments.sandbox.validation.structure import Visit, Walk

NOT_CHECKED = (
    "profiles (meta.profile), their extensions, slices and must-support",
    "terminology beyond the required codes that the specification lists (other bindings, displays, units, languages)",
    "whether references resolve and to which types, and whether fullUrl fits the id",
    "the XHTML of narratives",
    "duplicate keys of a JSON object (the last one counts)",
)
"""Checks that no answer includes. Unsupported rules are listed with them, by key."""


@dataclass(frozen=True)
class ValidationResult:
    """Result of validating a body."""

    issues: list[ValidatorIssue]
    """Findings in the order of the document, then broken invariants, then notes."""
    types: Counter[str]
    """Number of checked resources by type, including contained ones."""


class ResourceValidator:
    """Checks resources against the base specification of FHIR R4. Keeps no state between bodies."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        best_practice = {each.name for each in schema.invariants if each.best_practice}
        self._beyond = sorted(not_evaluable(schema.invariants))
        self._recommended = sorted(best_practice)
        self._left_out = best_practice.union(self._beyond)
        self._unlisted = sorted(url.rpartition("/")[2] for url in schema.unlisted)

    def validate(self, resource: Any) -> ValidationResult:
        """Check a resource, its entries and contained resources. The last issue lists the checks that were omitted."""
        walk = Walk(self._schema)
        walk.resource(resource, None)
        issues = walk.issues
        failed: dict[str, list[ElementPlace]] = {}
        for visit in walk.visits:
            issues += self._broken(visit, failed)
        if not issues:
            issues.append(ValidatorIssue(Message.NO_FINDING, None, Message.NO_FINDING.text, "information"))
        for name, places in failed.items():
            text = f"{name} could not be evaluated on {len(places)} elements, first on {places[0].expression}"
            issues.append(ValidatorIssue(Message.NOT_EVALUATED, places[0], text, "information", name))
        issues.append(self._not_checked(walk))
        return ValidationResult(issues, walk.types)

    def _broken(self, visit: Visit, failed: dict[str, list[ElementPlace]]) -> list[ValidatorIssue]:
        """Return the invariants that an element breaks; add those that cannot be evaluated to ``failed``."""
        scope = EvaluationScope(visit.element, visit.path, visit.resource, visit.root)
        broken = []
        for each in visit.invariants:
            if each.name in self._left_out:
                continue
            try:
                if not holds(each, scope):
                    broken.append(_broken_rule(each, visit.place))
            except EvaluationError:
                failed.setdefault(each.name, []).append(visit.place)
        return broken

    def _not_checked(self, walk: Walk) -> ValidatorIssue:
        claims = f"{walk.with_profile} of {walk.types.total()} resources name a profile"
        rules = f"rules {', '.join(self._beyond)} (not supported by this service)"
        codes = f"required codes of {', '.join(self._unlisted)} (the specification does not list them)"
        advice = f"recommendations {', '.join(self._recommended)}"
        text = "Not checked: " + "; ".join((*NOT_CHECKED, codes, rules, advice)) + f". {claims}."
        return ValidatorIssue(Message.NOT_CHECKED, None, text, "information")


def _broken_rule(invariant: Invariant, place: ElementPlace) -> ValidatorIssue:
    text = f"{place.expression}: {invariant.key}: {invariant.human}"
    return ValidatorIssue(Message.INVARIANT, place, text, invariant.severity, invariant.key)
