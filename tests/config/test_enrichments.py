"""Enrichment rules: inline, and in the external JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from config import ConfigError, EnrichmentRule, enrichment_rules
from config.services import AttributeToAdd, CreateGroup, CrtdlPreprocessingConfig
from tests.config.conftest import MINIMAL, Errors, Load, Loader

PROFILE = "https://profiles.example/StructureDefinition/Patient"

INLINE = f"""
services:
  crtdl_preprocessing:
    enabled: true
    enrichments:
      - group_reference: {PROFILE}
        create_if_not_exists: {{group_name: "${{GROUP}}"}}
        attributes_to_add:
          - attribute_ref: Patient.identifier
            must_have: true
            linked_groups: [https://profiles.example/x]
          - attribute_ref: Patient.id
"""

RULE = EnrichmentRule(
    group_reference=PROFILE,
    create_if_not_exists=CreateGroup(group_name="Patient"),
    attributes_to_add=(
        AttributeToAdd(
            attribute_ref="Patient.identifier", must_have=True, linked_groups=("https://profiles.example/x",)
        ),
        AttributeToAdd(attribute_ref="Patient.id"),
    ),
)

FILE_RULE: dict[str, Any] = {
    "groupReference": PROFILE,
    "createIfNotExists": {"groupName": "Patient"},
    "attributesToAdd": [
        {"attributeRef": "Patient.identifier", "mustHave": True, "linkedGroups": ["https://profiles.example/x"]},
        {"attributeRef": "Patient.id"},
    ],
}


def write(directory: Path, content: Any) -> Path:
    path = directory / "rules.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def rules_of(path: Path) -> tuple[EnrichmentRule, ...]:
    return enrichment_rules(CrtdlPreprocessingConfig(enabled=True, enrichments_path=path))


def with_file(path: Path, steps: str = "http_import, flattening") -> str:
    return (
        f"pipeline: {{enabled_steps: [{steps}]}}\n"
        "services:\n"
        "  flattening: {service_url: 'http://h', lookup_path: x.json}\n"
        f"  crtdl_preprocessing: {{enabled: true, enrichments_path: '{path}'}}\n"
    )


def references(path: Path) -> set[str]:
    with pytest.raises(ConfigError) as caught:
        rules_of(path)
    assert {f.key for f in caught.value.findings} == {"services.crtdl_preprocessing.enrichments_path"}
    assert "hunter2" not in str(caught.value)
    return {f.reference for f in caught.value.findings}


def test_inline_rules_with_variables(load: Load) -> None:
    config = load(MINIMAL + INLINE, env={"GROUP": "Patient"}).config.services.crtdl_preprocessing
    assert config.enrichments == enrichment_rules(config) == (RULE,)


def test_rules_in_a_variable_are_yaml_or_json(load: Load) -> None:
    rules = json.dumps([{"group_reference": PROFILE, "attributes_to_add": [{"attribute_ref": "Patient.id"}]}])
    config = load(MINIMAL, env={"APP_SERVICES_CRTDL_PREPROCESSING_ENRICHMENTS": rules}).config
    (rule,) = config.services.crtdl_preprocessing.enrichments or ()
    assert rule.attributes_to_add[0].must_have is False


def test_inline_problems_have_their_own_key_paths(errors: Errors) -> None:
    found = errors(
        MINIMAL + "services: {crtdl_preprocessing: {enrichments: [{group_ref: x, attributes_to_add: "
        "[{must_have: perhaps}]}, hunter2]}}"
    )
    base = "services.crtdl_preprocessing.enrichments"
    assert set(found) == {
        ("required-key", f"{base}[0].group_reference"),
        ("unknown-key", f"{base}[0].group_ref"),
        ("required-key", f"{base}[0].attributes_to_add[0].attribute_ref"),
        ("wrong-type", f"{base}[0].attributes_to_add[0].must_have"),
        ("wrong-type", f"{base}[1]"),
    }
    assert found["unknown-key", f"{base}[0].group_ref"].hint == "did you mean group_reference?"


def test_both_forms_together_are_an_error_even_when_switched_off(errors: Errors) -> None:
    found = errors(MINIMAL + "services: {crtdl_preprocessing: {enrichments: [], enrichments_path: x.json}}")
    assert set(found) == {("enrichments-both", "services.crtdl_preprocessing")}


def test_the_file_has_camel_case_names(tmp_path: Path) -> None:
    assert rules_of(write(tmp_path, [FILE_RULE])) == (RULE,)


@pytest.mark.parametrize("reference", [PROFILE, PROFILE + "|1.0", PROFILE + "/"])
def test_the_short_form_names_the_group_after_its_profile(tmp_path: Path, reference: str) -> None:
    short = {"groupReference": reference, "addGroupIfNotExists": True, "attributesToAdd": []}
    (rule,) = rules_of(write(tmp_path, [short]))
    assert rule.create_if_not_exists == CreateGroup(group_name="Patient")
    (rule,) = rules_of(write(tmp_path, [short | {"addGroupIfNotExists": False}]))
    assert rule.create_if_not_exists is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([FILE_RULE | {"hunter": "hunter2"}], {"enrichment-unknown-key"}),
        ([FILE_RULE | {"attributesToAdd": [{"attributeRef": "a", "must": 1}]}], {"enrichment-unknown-key"}),
        ([{"group_reference": PROFILE}], {"enrichment-unknown-key", "enrichment-required-key"}),
        ([FILE_RULE | {"addGroupIfNotExists": True}], {"enrichment-both-create"}),
        ([FILE_RULE | {"addGroupIfNotExists": False}], {"enrichment-both-create"}),
        (["hunter2"], {"enrichment-wrong-type"}),
        (FILE_RULE, {"enrichment-file"}),
        ("[hunter2", {"enrichment-file"}),
        ("", {"enrichment-file"}),
        ("[" * 100_000, {"enrichment-file"}),
    ],
)
def test_a_bad_file_is_rejected(tmp_path: Path, content: Any, expected: set[str]) -> None:
    assert references(write(tmp_path, content)) == expected


def test_a_missing_file_and_a_directory_are_rejected(tmp_path: Path) -> None:
    assert references(tmp_path / "none.json") == {"enrichment-file"}
    assert references(tmp_path) == {"enrichment-file"}


def test_every_bad_rule_of_a_file_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path, [{}, FILE_RULE, FILE_RULE | {"x": 1}])
    with pytest.raises(ConfigError) as caught:
        rules_of(path)
    assert [f.message[:6] for f in caught.value.findings] == ["rule 1", "rule 3"]


def test_loading_a_configuration_checks_the_file_of_an_enabled_step(loader: Loader) -> None:
    path = write(loader.directory, [FILE_RULE])
    config = loader.load(with_file(path)).config.services.crtdl_preprocessing
    assert enrichment_rules(config) == (RULE,)
    write(loader.directory, [{"x": 1}])
    assert {reference for reference, _ in loader.errors(with_file(path))} == {
        "enrichment-unknown-key",
        "enrichment-required-key",
    }
    assert loader.load(with_file(path, steps="local_import"))


def test_no_rules_apply_when_preprocessing_is_off(load: Load) -> None:
    config = load(MINIMAL + INLINE.replace("enabled: true", "enabled: false"), env={"GROUP": "x"}).config
    assert enrichment_rules(config.services.crtdl_preprocessing) == ()


def test_a_group_and_an_attribute_without_a_name_are_findings_with_their_place(errors: Errors, tmp_path: Path) -> None:
    attribute = '{group_reference: x, attributes_to_add: [{attribute_ref: ""}]}'
    found = errors(
        MINIMAL + f"services: {{crtdl_preprocessing: {{enrichments: [{{group_reference: ''}}, {attribute}]}}}}"
    )
    base = "services.crtdl_preprocessing.enrichments"
    assert set(found) == {
        ("out-of-range", f"{base}[0].group_reference"),
        ("out-of-range", f"{base}[1].attributes_to_add[0].attribute_ref"),
    }
    rules = [{"groupReference": ""}, {"groupReference": "x", "attributesToAdd": [{"attributeRef": ""}]}]
    with pytest.raises(ConfigError) as caught:
        rules_of(write(tmp_path, rules))
    assert [(finding.reference, finding.message) for finding in caught.value.findings] == [
        ("enrichment-out-of-range", "rule 1 (groupReference): groupReference must not be empty"),
        ("enrichment-out-of-range", "rule 2 (attributesToAdd[0].attributeRef): attributeRef must not be empty"),
    ]
