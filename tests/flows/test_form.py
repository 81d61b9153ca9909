"""The form of a deployment: few parameters, each a field that can be filled in at once."""

from flows.pipeline import pipeline

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


def test_the_description_of_a_deployment_is_for_people():
    assert pipeline.description is not None
    assert "Args:" not in pipeline.description
