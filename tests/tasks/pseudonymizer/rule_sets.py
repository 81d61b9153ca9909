"""Small rule files of our own, each with the character of a published one."""

from __future__ import annotations

import json
from typing import Any, Final

V2_0203: Final = "http://terminology.hl7.org/CodeSystem/v2-0203"
KEYS: Final = {"cryptoHashKey": "a-key", "dateShiftKey": "another-key"}

Rule = dict[str, Any]


def rule(path: str, method: str, **settings: Any) -> Rule:
    return {"path": path, "method": method, **settings}


def rule_file(*rules: Rule, **parameters: Any) -> str:
    """Return a rule file; JSON is YAML. Without parameters it has both keys."""
    document = {"fhirVersion": "R4", "fhirPathRules": rules, "parameters": parameters or KEYS}
    return json.dumps(document, indent=1)


def typed(code: str) -> str:
    """Return the path of the values of identifiers of a type."""
    found = f"type.coding.where(system='{V2_0203}' and code='{code}').exists()"
    return f"nodesByType('Identifier').where({found}).value"


def hashed(*paths: str, length: int | None = None) -> list[Rule]:
    more = {} if length is None else {"truncateToMaxLength": length}
    return [rule(path, "cryptoHash", **more) for path in paths]


def redacted(*paths: str) -> list[Rule]:
    return [rule(path, "redact") for path in paths]


IDS: Final = ("Resource.id", "nodesByType('Reference').reference")
URLS: Final = ("Bundle.entry.fullUrl", "Bundle.entry.request.url")
PERSON: Final = redacted("nodesByType('HumanName')", "nodesByType('Address')", "nodesByType('ContactPoint')")
ROUTING: Final = [rule("Provenance.agent.who.identifier", "keep"), rule("Provenance.entity.what.identifier", "keep")]
TO_MONTH: Final = rule("Patient.birthDate", "generalize", cases={"true": "$this.toString().substring(0, 7)"})
TO_YEAR: Final = rule("Patient.birthDate", "generalize", cases={"true": "$this.toString().substring(0, 4)"})
DEATH: Final = redacted("Patient.deceased")
DATES: Final = [rule(f"nodesByType('{kind}')", "dateshift") for kind in ("date", "dateTime", "instant")]
VISITS: Final = [rule(typed(code), "pseudonymize", domain=name) for code, name in (("VN", "case"), ("MR", "patient"))]

SHORT: Final = [*hashed(*IDS, *URLS, length=32), *PERSON]

RULE_SETS: Final = {
    "bundled default": rule_file(
        *redacted("nodesByType('HumanName')"),
        rule(typed("VN"), "encrypt"),
        rule(typed("MR"), "encrypt"),
        *hashed("nodesByType('id')"),
    ),
    "bundled HIPAA file": rule_file(
        *redacted("nodesByType('Extension')"),
        *hashed(*IDS),
        *redacted(*URLS, "nodesByType('Identifier').value", "nodesByType('Narrative')", "nodesByType('Annotation')"),
        *PERSON,
        *DATES,
    ),
    "DUP base 2026-06": rule_file(*SHORT, *VISITS, TO_MONTH, *DEATH),
    "DUP base 2026-09": rule_file(
        *SHORT, *VISITS, *ROUTING,
        *[rule(f"{typed(code).removesuffix('.value')}", "keep") for code in ("VN", "MR")],
        *redacted("nodesByType('Identifier')"), TO_MONTH, *DEATH,
    ),
    "Kalium360": rule_file(
        *SHORT, *VISITS, *ROUTING, *hashed("nodesByType('Identifier').value"), TO_MONTH, *DEATH
    ),
    "aether's test file": rule_file(*SHORT, VISITS[1], *redacted("nodesByType('Narrative')"), TO_YEAR),
    "bzkf onco": rule_file(
        *hashed(*IDS, *URLS, typed("VN"), typed("MR")), *PERSON, TO_MONTH, rule("Observation.effective", "dateshift")
    ),
    "bzkf helm": rule_file(
        rule(typed("VN"), "encrypt"), rule(typed("MR"), "pseudonymize", domain="patient"), *PERSON,
        **KEYS, encryptKey="k" * 32,
    ),
    "fts-next": rule_file(
        rule("Patient.identifier.where(system='https://clinic.example/mrn').value", "pseudonymize", domain="fts"),
        *PERSON, TO_YEAR, *DATES[1:],
    ),
    "whitelist": rule_file(
        *hashed(*IDS, length=32),
        rule(typed("MR"), "pseudonymize", domain="patient"),
        *[rule(typed("MR").removesuffix(".value"), "keep")],
        TO_YEAR,
        *[rule(path, "keep") for path in (
            "Patient.gender", "Observation.status", "Observation.code", "Observation.subject", "Observation.value",
            "Observation.effective", "Provenance.target", "Provenance.recorded", "Provenance.agent",
            "Provenance.entity", "Bundle.entry.request.method",
        )],
        *redacted("Resource"),
    ),
    "redact-all": rule_file(*redacted("Resource")),
}  # fmt: skip
"""One for each kind of published rule file."""

OTHERS: Final = {
    "ids longer than references": rule_file(*hashed(IDS[0]), *hashed(IDS[1], length=32), *PERSON),
    "encrypted ids": rule_file(*[rule(path, "encrypt") for path in IDS], *PERSON, **KEYS, encryptKey="k" * 32),
    "without a key": rule_file(*SHORT, *redacted("nodesByType('Identifier')"), TO_MONTH, dateShiftKey="k"),
    "a domain for Encounters": rule_file(
        *SHORT, rule("Encounter.identifier.value", "pseudonymize", domain="stay"),
        *redacted("nodesByType('Identifier')"), TO_MONTH,
    ),
    "a domain for each type": rule_file(
        *[rule(f"{kind}.id", "pseudonymize", domain=kind) for kind in ("Patient", "Observation", "Encounter")],
        *redacted("Patient.managingOrganization", "nodesByType('Identifier')"), rule(IDS[1], "pseudonymize"), *PERSON,
        TO_MONTH,
    ),
    "an unknown method": rule_file(*SHORT, rule("Patient.gender", "obscure")),
    "a whitelist that lacks a type": rule_file(
        *hashed(IDS[0], "Observation.subject.reference", length=32), rule("Observation.status", "keep"),
        rule("Observation.code", "keep"), *redacted("Resource"),
    ),
    "names kept": rule_file(*hashed(*IDS, length=32), *redacted("nodesByType('Identifier')"), *PERSON[1:], TO_MONTH),
}  # fmt: skip
