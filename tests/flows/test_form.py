"""The forms of a deployment, each field to be filled in at once, and of a wait."""

from flows.pipeline import pipeline
from flows.prefect.form import FormAnswer

OPTIONAL = ("crtdl", "input", "anonymization_config", "patients", "overrides")
PROPERTIES = pipeline.parameters.properties


def test_every_parameter_has_a_description_and_only_the_first_config_is_required():
    assert list(PROPERTIES) == ["config", *OPTIONAL]
    assert pipeline.parameters.required == ["config"]
    assert all(shown["description"] for shown in PROPERTIES.values())


def test_no_parameter_is_a_choice_between_types_that_hides_its_field():
    assert all("anyOf" not in shown for shown in PROPERTIES.values())
    assert [PROPERTIES[name]["type"] for name in OPTIONAL] == ["string"] * 4 + ["array"]


def test_the_defaults_that_the_form_sends_pass_its_own_check():
    assert [PROPERTIES[name]["default"] for name in OPTIONAL] == ["", "", "", "", []]


def test_parameters_of_the_command_line_are_valid_too():
    given = {"config": "a.yaml", **dict.fromkeys(OPTIONAL)}
    assert pipeline.validate_parameters(given) == given


def test_the_form_of_a_wait_preselects_no_decision_and_no_name():
    shown = FormAnswer.model_json_schema()
    assert shown["required"] == ["decision", "by"]
    assert [name for name, field in shown["properties"].items() if "default" in field] == ["comment"]


def test_the_description_of_a_deployment_is_for_people():
    assert pipeline.description is not None
    assert "Args:" not in pipeline.description
