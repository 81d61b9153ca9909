"""Valid and refused rule files in the format of the deployed service."""

from __future__ import annotations

import pytest

from deployments.sandbox.pseudonymization.deidentify import DeIdentifier
from deployments.sandbox.pseudonymization.problem import RuleFileError
from deployments.sandbox.pseudonymization.rulefile import MethodName, read_rule_file
from tests.deployments.sandbox.pseudonymization.conftest import rule, rules


def refusal(content: bytes) -> str:
    with pytest.raises(RuleFileError) as refused:
        DeIdentifier(read_rule_file(content))
    return str(refused.value)


def test_a_file_as_sites_have_it() -> None:
    read = read_rule_file(
        b"""---
fhirVersion: R4
fhirPathRules:
  - path: nodesByType('HumanName')
    method: redact
  - {path: Resource.id, method: cryptohash, truncateToMaxLength: 32}
parameters:
  dateShiftKey: "0123"
  dateShiftScope: resource
  cryptoHashKey: ""
  encryptKey: ""
  enablePartialAgesForRedact: true
  enablePartialDatesForRedact: false
  restrictedZipCodeTabulationAreas: ["036", 059]
"""
    )
    assert [item.method for item in read.fhir_path_rules] == [MethodName.REDACT, MethodName.CRYPTO_HASH]
    assert read.fhir_path_rules[1].setting("truncateToMaxLength") == "32"
    parameters = read.parameters
    assert (parameters.date_shift_key, parameters.crypto_hash_key) == ("0123", None)
    assert (parameters.enable_partial_ages_for_redact, parameters.enable_partial_dates_for_redact) == (True, False)
    assert parameters.restricted_zip_code_tabulation_areas == ("036", "059")


def test_method_names_are_case_insensitive() -> None:
    for name in ("DATESHIFT", "dateshift", "dateShift"):
        assert read_rule_file(rules(rule("Patient", name))).fhir_path_rules[0].method is MethodName.DATE_SHIFT


def test_a_file_may_do_without_parameters_and_version() -> None:
    assert DeIdentifier(read_rule_file(b"fhirPathRules: [{path: Patient.name, method: redact}]"))


def test_settings_of_a_rule_that_nobody_knows_are_left_alone() -> None:
    assert DeIdentifier(read_rule_file(rules(rule("Patient.name", "redact", comment="why"))))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "mapping"),
        (b"- a", "mapping"),
        (b"{", "YAML"),
        (b"a: [\x00]", "YAML"),
        (b"\xff\xfe\xff", "YAML"),
        (b"*** no rule file ***: [", "YAML"),
        (b"fhirVersion: R4", "fhirPathRules"),
        (b"fhirVersion: STU3\nfhirPathRules: []", "R4"),
        (b"fhirPathRules: {}", "fhirPathRules"),
        (b"fhirPathRules: [{path: Patient}]", "fhirPathRules.0.method"),
        (b"fhirPathRules: [{method: redact}]", "fhirPathRules.0.path"),
        (b"fhirPathRules: []\nwombat: 1", "wombat"),
        (b"fhirPathRules: []\nparameters: {wombat: 1}", "parameters.wombat"),
        (b"fhirPathRules: []\nparameters: {dateShiftScope: planet}", "dateShiftScope"),
        (b"fhirPathRules: []\nparameters: {dateShiftFixedOffsetInDays: many}", "dateShiftFixedOffsetInDays"),
        (b"fhirPathRules: []\nparameters: {cryptoHashAlgorithm: Blake3}", "HmacSha256"),
        (rules(rule("Patient.name", "obliterate")), "unknown method 'obliterate'"),
        (rules(rule("Patient.name", "encrypt")), "the method encrypt is not supported by the sandbox"),
        (rules(rule("Patient.name", "perturb", span=1)), "the method perturb is not supported by the sandbox"),
        (rules(rule("Patient.name", "substitute")), "fhirPathRules.0: substitute needs replaceWith"),
        (rules(rule("Patient.name", "generalize")), "generalize needs cases"),
        (rules(rule("Patient.name", "generalize", cases={"$this =": "1"})), "cannot be read"),
        (rules(rule("Patient.name", "generalize", cases={"true": "1"}, otherValues="burn")), "otherValues"),
        (rules(rule("Patient.id", "cryptoHash", truncateToMaxLength="x")), "truncateToMaxLength"),
        (rules(rule("Patient.id", "keep"), rule("Patient.where(", "redact")), "fhirPathRules.1"),
    ],
)
def test_what_cannot_be_applied_is_refused_and_named(content: bytes, says: str) -> None:
    assert says in refusal(content)


def test_a_refusal_quotes_no_key() -> None:
    content = b"fhirPathRules: [{path: a, method: b}]\nparameters: {cryptoHashKey: [SECRET], dateShiftKey: SECRET}"
    assert "SECRET" not in refusal(content)


def test_keys_are_in_no_repr() -> None:
    assert "a key for" not in repr(read_rule_file(rules()))
