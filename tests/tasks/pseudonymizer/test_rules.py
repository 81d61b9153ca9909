"""Reading of an anonymization file (document 3 §4)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tasks.pseudonymizer.rules import read_rules
from tasks.shared.errors import InputError

RULES = """
fhirVersion: R4
fhirPathRules:
  - {path: nodesByType('Identifier'), method: pseudonymize, domain: x}
  - path: Patient.birthDate
    method: %s
parameters: %s
"""


def rules(tmp_path: Path, method: str = "redact", parameters: str = "{}") -> tuple[str, ...]:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES % (method, parameters))
    return read_rules(path).warnings


def test_the_content_is_the_file_s_bytes_and_never_shows(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    content = b"fhirPathRules: [{path: x, method: keep}]\r\nparameters: {cryptoHashKey: CANARY}\r\n# \xc3\xbc\n"
    path.write_bytes(content)
    read = read_rules(path)
    assert read.content == content
    assert read.digest == hashlib.sha256(content).hexdigest()
    assert "CANARY" not in repr(read)
    assert read.digest not in repr(read)


@pytest.mark.parametrize(
    ("method", "parameters", "named"),
    [
        ("dateShift", "{}", ["dateShiftKey", "dateShiftFixedOffsetInDays"]),
        ("dateShift", "{dateShiftKey: ''}", ["dateShiftKey"]),
        ("dateshift", "{cryptoHashKey: k}", ["dateShiftKey"]),
        ("dateShift", "{keyDerivationContext: p}", ["dateShiftKey"]),
        ("cryptoHash", "{}", ["cryptoHashKey", "keyDerivationContext"]),
        ("encrypt", "{cryptoHashKey: k}", ["encryptKey", "keyDerivationContext"]),
        ("encrypt", "", ["encryptKey"]),
    ],
)
def test_a_rule_whose_key_may_change_between_requests_gets_a_warning(
    tmp_path: Path, method: str, parameters: str, named: list[str]
) -> None:
    (warning,) = rules(tmp_path, method, parameters)
    assert "changes between requests" in warning
    assert all(name in warning for name in named)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("dateShift", "{dateShiftKey: k}"),
        ("dateShift", "{dateShiftFixedOffsetInDays: 0}"),
        ("cryptoHash", "{cryptoHashKey: k}"),
        ("cryptoHash", "{keyDerivationContext: project}"),
        ("encrypt", "{encryptKey: k}"),
        ("encrypt", "{keyDerivationContext: project}"),
        ("redact", "{}"),
    ],
)
def test_a_rule_with_its_key_gets_none(tmp_path: Path, method: str, parameters: str) -> None:
    assert rules(tmp_path, method, parameters) == ()


@pytest.mark.parametrize(("method", "removes"), [("remove", True), ("REMOVE", True), ("redact", False)])
def test_a_rule_that_removes_may_make_entries_fewer(tmp_path: Path, method: str, *, removes: bool) -> None:
    (tmp_path / "rules.yaml").write_text(json.dumps({"fhirPathRules": [{"path": "Observation", "method": method}]}))
    assert read_rules(tmp_path / "rules.yaml").removes is removes


@pytest.mark.parametrize("content", [b"", b"\n \n", b"# nothing\n", b"---\n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rules.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_rules(path)
    assert caught.value.reference == "file-empty"
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(InputError) as caught:
            read_rules(path)
        assert caught.value.reference == "file-unreadable"


@pytest.mark.parametrize(
    "content", [b"a: [CANARY", b"CANARY", b"- CANARY", b"\xff\xfeCANARY\x00", b"a: CANARY\n\tb: 1"]
)
def test_what_is_no_mapping_in_yaml_is_refused_without_quoting_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rules.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_rules(path)
    assert caught.value.reference == "rules-not-yaml"
    assert "CANARY" not in caught.value.render()
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "content",
    [
        b"services: {send: {auth: {password: CANARY}}}\n",
        b"parameters: {cryptoHashKey: CANARY}\n",
        b"fhirPathRules: CANARY\n",
        b"fhirPathRules:\nparameters: {cryptoHashKey: CANARY}\n",
        b"fhirPathRules: []\nparameters: {cryptoHashKey: CANARY}\n",
    ],
    ids=["another file", "none", "no list", "nothing", "empty"],
)
def test_a_file_without_rules_is_refused_and_never_sent(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rules.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_rules(path)
    assert caught.value.reference == "rules-not-yaml"
    assert "fhirPathRules" in caught.value.render()
    assert "CANARY" not in caught.value.render()
