"""The synthetic resource goes first: what each answer to it means, row by row."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from config import PipelineConfig
from tasks.pseudonymizer.probe import BUNDLE
from tasks.pseudonymizer.rules import read_rules
from tasks.pseudonymizer.step import STEP
from tasks.shared.errors import InputError, ServiceError, SluiceError
from tests.peers import job, services
from tests.peers.data import bundle, patient, write
from tests.peers.server import Reply, ScriptedServer, SeenRequest
from tests.peers.services import JSON, as_json, issue, outcome

Json = dict[str, Any]
FATAL = outcome(issue("fatal", "processing"))


def pseudonymized(change: Callable[[Json, Json], Any] = lambda *_: None, **members: Any) -> Reply:
    """Return the answer of a good service, changed: the function gets Patient and Observation."""
    answer = json.loads(services.pseudonyms(json.dumps(BUNDLE).encode()))
    one, other = (entry["resource"] for entry in answer["entry"])
    change(one, other)
    return as_json({key: value for key, value in (answer | members).items() if value is not None})


def emptied() -> Reply:
    resources = [{"resourceType": "Patient"}, {"resourceType": "Observation"}]
    return as_json({"resourceType": "Bundle", "entry": [{"resource": one} for one in resources]})


def subject(reference: str) -> Callable[[Json, Json], Any]:
    return lambda _, other: other.update(subject={"reference": reference})


ROWS: dict[str, tuple[Reply, str]] = {
    "a page": (Reply(200, b"<html>", {"Content-Type": "text/html"}), "wrong-service"),
    "another resource": (as_json({"resourceType": "OperationOutcome"}), "wrong-service"),
    "entries in another order": (pseudonymized(entry=json.loads(json.dumps(BUNDLE["entry"]))[::-1]), "wrong-service"),
    "no such operation": (Reply(404, outcome(issue())), "wrong-service"),
    "nothing changed": (as_json(BUNDLE), "not-pseudonymized"),
    "everything removed": (emptied(), "everything-removed"),
    "ids too long": (pseudonymized(lambda one, _: one.update(id="a" * 65)), "ids-invalid"),
    "ids with other characters": (pseudonymized(lambda one, _: one.update(id="a_b")), "ids-invalid"),
    "references stay": (pseudonymized(subject("Patient/sluice-probe-patient")), "references-broken"),
    "references to something else": (pseudonymized(subject("Patient/other")), "references-broken"),
    "references lose their type": (pseudonymized(subject("abc")), "references-broken"),
    "ids stay": (pseudonymized(lambda one, _: one.update(id="sluice-probe-patient")), "references-broken"),
    "400": (Reply(400, FATAL, JSON), "rules-refused"),
    "422, a missing domain in the newest": (Reply(422, FATAL, JSON), "rules-refused"),
    "500 fatal, a missing domain": (Reply(500, FATAL, JSON), "rules-refused"),
    "500 without a word": (Reply(500), "service-busy"),
    "503": (Reply(503, FATAL, JSON), "service-busy"),
    "401": (Reply(401), "service-unauthorized"),
}


def findings(script: Callable[[SeenRequest], Reply | None], directory: Path, **keys: Any) -> list[Any]:
    retry = {"max_attempts": 2, "initial_backoff_ms": 1, "max_backoff_ms": 1}
    with ScriptedServer(services.pseudonymization, script) as server:
        config = PipelineConfig.model_validate(
            {"services": {"pseudonymizer": {"url": server.url} | keys}, "retry": retry}
        )
        return job.probed(*STEP.services(config), config)


@pytest.mark.parametrize("row", ROWS)
def test_each_answer_has_its_row(row: str, tmp_path: Path) -> None:
    reply, reference = ROWS[row]
    (error,) = findings(lambda _: reply, tmp_path)
    assert isinstance(error, SluiceError)
    assert error.reference == reference
    assert error.exit_code == (3 if error.transient else 1 if reference == "service-unauthorized" else 2)
    assert error.hint


def test_a_good_service_has_no_finding_and_what_may_surprise_is_a_warning(tmp_path: Path) -> None:
    assert findings(lambda _: None, tmp_path) == []
    lost = pseudonymized(lambda _, other: other.update(focus=[{"reference": "abc"}]), type=None)
    assert [warning.text.split(" ")[0:3] for warning in findings(lambda _: lost, tmp_path)] == [
        ["the", "service", "removes"], ["the", "rules", "remove"],
    ]  # fmt: skip


def test_replicas_with_different_keys_are_found_at_once(tmp_path: Path) -> None:
    keys = iter(range(100))

    def replica(seen: SeenRequest) -> Reply:
        return Reply(200, services.pseudonyms(seen.body, b"key%d" % (next(keys) % 2)), JSON)

    (error,) = findings(replica, tmp_path)
    assert error.reference == "pseudonyms-change"
    assert next(keys) == 5  # the first alone, then as many as may be under way


def rules_file(directory: Path, text: str = "fhirPathRules: [{path: Patient.id, method: cryptoHash}]") -> str:
    path = directory / "rules.yaml"
    path.write_text(text)
    return str(path)


def test_a_service_that_ignores_the_rules_is_too_old(tmp_path: Path) -> None:
    def old(seen: SeenRequest) -> Reply:
        return Reply(200, services.pseudonyms(services.deidentify(seen.body)[0]), JSON)

    (error,) = findings(old, tmp_path, anonymization_config=rules_file(tmp_path))
    assert (error.reference, error.exit_code) == ("pseudonymizer-too-old", 2)
    assert "2.34.0" in error.message
    assert findings(lambda _: None, tmp_path, anonymization_config=rules_file(tmp_path)) == []


def test_a_key_that_changes_and_changes_back_is_found_and_the_files_are_done_again(tmp_path: Path) -> None:
    key, others = [b"first"], [b"second"]
    write(tmp_path / "import/a.ndjson", bundle(patient("p")))

    def changing(seen: SeenRequest) -> Reply:
        if b"sluice-probe" not in seen.body and others:
            key[0] = others.pop()
        return Reply(200, services.pseudonyms(seen.body, key[0]), JSON)

    with ScriptedServer(services.pseudonymization, changing) as server:
        config = PipelineConfig.model_validate({"services": {"pseudonymizer": {"url": server.url}}})
        context = job.context(tmp_path, "pseudonymizer", config, position=2, source=tmp_path / "import")
        with pytest.raises(ServiceError) as caught:
            STEP.run(context)
        assert (caught.value.reference, caught.value.exit_code) == ("pseudonyms-change", 1)
        key[0] = b"first"
        report = STEP.run(context)
    assert any("done again" in warning for warning in report.warnings)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        (None, "file-unreadable"), ("", "file-empty"), ("a: [", "rules-not-yaml"), ("services: {}", "rules-not-yaml"),
        ("- x", "rules-not-yaml"), ("fhirPathRules: []", "rules-not-yaml"),
    ],
)  # fmt: skip
def test_a_rule_file_that_cannot_be_sent_is_an_error_before_any_request(
    tmp_path: Path, text: str | None, reference: str
) -> None:
    path = tmp_path / "rules.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_rules(path)
    assert caught.value.reference == reference
    assert findings(lambda _: Reply(500), tmp_path, anonymization_config=str(path)) == []


@pytest.mark.parametrize(
    ("method", "parameters", "warned"),
    [
        ("dateshift", "{}", True), ("dateShift", "{dateShiftKey: k}", False),
        ("dateShift", "{dateShiftFixedOffsetInDays: 3}", False), ("cryptoHash", "{}", True),
        ("encrypt", "{keyDerivationContext: c}", False), ("CryptoHash", "{encryptKey: k}", True),
        ("redact", "{}", False),
    ],
)  # fmt: skip
def test_a_missing_key_is_a_warning(tmp_path: Path, method: str, parameters: str, warned: bool) -> None:
    text = f"fhirPathRules: [{{path: Patient, method: {method}}}]\nparameters: {parameters}"
    assert bool(read_rules(Path(rules_file(tmp_path, text))).warnings) is warned
