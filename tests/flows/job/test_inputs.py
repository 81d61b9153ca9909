"""CRTDL and INPUT are distinguished by their content."""

import json
from typing import Any

import pytest

from config import ConfigError
from flows.job.inputs import JobInputs, gather
from flows.job.problem import reported
from tasks.shared.errors import InputError

CRTDL = {"version": "1", "cohortDefinition": {}, "dataExtraction": {}}


def gathered(*arguments: Any, **options: Any) -> JobInputs:
    """Return the inputs of a command line, or raise the first error."""
    inputs, wrong = gather(*arguments, **options)
    if wrong:
        raise wrong[0]
    return inputs


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "query.crtdl").write_text(json.dumps(CRTDL))
    (tmp_path / "other.crtdl").write_text(json.dumps(CRTDL))
    (tmp_path / "data").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "wrapped.json").write_text(json.dumps({"resourceType": "Parameters", "parameter": []}))
    (tmp_path / "other.json").write_text(json.dumps({"cohortDefinition": {}}))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "crtdl", "source"),
    [
        ([], None, None),
        (["query.crtdl"], "query.crtdl", None),
        (["data"], None, "data"),
        (["query.crtdl", "data"], "query.crtdl", "data"),
        (["data", "query.crtdl"], "query.crtdl", "data"),
        (["https://h.example/x.ndjson"], None, "https://h.example/x.ndjson"),
    ],
)
def test_either_may_be_left_out_and_order_does_not_matter(files, arguments, crtdl, source):
    inputs = gathered("config.yaml", arguments)
    assert inputs.crtdl == (str(files / crtdl) if crtdl else None)
    expected = source if source is None or "://" in source else str(files / source)
    assert inputs.input == expected


@pytest.mark.parametrize(
    ("argument", "reference", "says"),
    [
        ("notes.txt", "not-a-crtdl", "not JSON"),
        ("wrapped.json", "not-a-crtdl", "Parameters"),
        ("other.json", "not-a-crtdl", "dataExtraction"),
        ("nowhere", "argument-not-found", "neither a file"),
        ("http://user:secret@h.example/x", "url-secret", "secret"),
        ("https://h.example/x?X-Amz-Signature=abc", "url-secret", "secret"),
    ],
)
def test_what_is_neither_is_an_error_that_says_what_was_expected_and_found(files, argument, reference, says):
    with pytest.raises(InputError) as caught:
        gathered("config.yaml", [argument])
    assert caught.value.reference == reference
    assert says in caught.value.message
    assert "secret@" not in caught.value.render()
    assert caught.value.exit_code == 2


def test_two_of_a_kind_are_an_error(files):
    with pytest.raises(InputError, match="two CRTDL"):
        gathered("c", ["query.crtdl", "other.crtdl"])
    with pytest.raises(InputError, match="two inputs"):
        gathered("c", ["data"], directory="elsewhere")


def test_dir_is_the_input_and_paths_become_absolute(files):
    inputs = gathered("config.yaml", directory="data", patients="p.txt", anonymization_config="a.yaml")
    assert inputs.input == str(files / "data")
    assert inputs.config == str(files / "config.yaml")
    assert inputs.patients == str(files / "p.txt")
    assert inputs.anonymization_config == str(files / "a.yaml")


def test_the_parameters_of_a_run_are_plain_json(files):
    inputs = gathered("config.yaml", ["data"], overrides=["retry.max_attempts=3"])
    assert json.loads(json.dumps(inputs.parameters())) == inputs.parameters()
    assert type(inputs).model_validate(inputs.parameters()) == inputs


@pytest.mark.parametrize("url", ["https://[::1/x"])
def test_what_begins_like_a_url_and_is_none_is_an_error(files, url):
    with pytest.raises(InputError) as caught:
        gathered("config.yaml", [url])
    assert caught.value.reference == "url-invalid"


@pytest.mark.parametrize("query", ["?a=1&SIG=CANARY", "?access_token=CANARY", "#token=CANARY", "?%73ig=CANARY"])
def test_a_secret_in_the_query_of_the_input_is_refused_and_not_quoted(files, query):
    with pytest.raises(InputError) as caught:
        gathered("config.yaml", [f"https://h.example/x{query}"])
    assert caught.value.reference == "url-secret"
    assert "CANARY" not in caught.value.render()


def test_a_query_without_a_secret_is_accepted(files):
    url = "https://h.example/x?_since=2026-01-01&sig="
    assert gathered("config.yaml", [url]).input == url


def test_a_search_parameter_of_fhir_is_no_secret(files):
    url = "https://h.example/Observation?code=8867-4&_count=10"
    assert gathered("config.yaml", [url]).input == url


def test_a_run_without_a_terminal_reports_every_finding_of_its_configuration(files):
    (files / "config.yaml").write_text(
        "pipeline: {enabled_steps: [http_import]}\nretry: {max_attempts: 11}\njobsdir: x\n"
    )
    with pytest.raises(ConfigError) as caught:
        gathered("config.yaml").load()
    error = reported(caught.value)
    assert error.message.splitlines() == [
        "2 checks failed",
        "- jobsdir is not a configuration key (jobsdir; did you mean jobs_dir?)",
        "- max_attempts must be at most 10 (retry.max_attempts)",
    ]
