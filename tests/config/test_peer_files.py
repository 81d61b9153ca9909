"""Files and variables of the peer tool (document 7, section 5): accepted with warnings, and rewritten."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from config import load_config
from config.document import places
from config.migrate import migrate
from tests.config.conftest import Errors, Load
from tests.conftest import Commands

PEER = """\
# our pipeline
services:
  torch:
    # the server behind the proxy
    base_url: "http://torch.example/fhir/"   # its root
    username: ""   # nobody
    extraction_timeout_minutes: 20
    password: ""
    polling_interval_seconds: 3
  dimp:
    url: http://pseudonymizer.example/fhir
  csv_conversion:
    url: ""
  flattening:
    service_url: "http://flattener.example"
    lookup_path: /tmp/lookup.json
    timeout: 30m
  send:
    send_as: transfer_load
    server_url: 'http://transfer.example/fhir'
    auth:
    project_identifier: "P"
    organization_identifier: x.example
pipeline:
  enabled_steps:
    - torch
    - "dimp"   # before the tables
    - flattening
    - send
  max_ndjson_line_size_mb: 100
crtdl_preprocessing:
  enabled: true
  enrichments_path: {enrichments}
"""


@pytest.fixture
def peer(tmp_path: Path) -> str:
    path = tmp_path / "enrichments.json"
    path.write_text("[]")
    return PEER.format(enrichments=path)


def test_a_file_of_the_peer_tool_is_accepted_with_a_warning_for_each_older_name(load: Load, peer: str) -> None:
    loaded = load(peer)
    config = loaded.config
    assert config.pipeline.enabled_steps == ("extractor", "pseudonymizer", "flattening", "send")
    assert config.services.extractor.base_url == "http://torch.example"
    assert config.services.extractor.extraction_timeout.total_seconds() == 1200
    assert config.services.extractor.auth.username is None
    assert config.services.pseudonymizer.url == "http://pseudonymizer.example"
    assert config.services.send.url == "http://transfer.example"
    assert config.services.send.transfer.project_identifier == "P"
    assert config.services.crtdl_preprocessing.enabled
    warned = [(finding.reference, finding.key) for finding in loaded.warnings]
    assert sorted(warned) == sorted([
        *(("deprecated-key", key) for key in (
            "services.torch", "services.dimp", "services.csv_conversion", "services.send.server_url",
            "services.send.project_identifier", "services.send.organization_identifier",
            "pipeline.enabled_steps[0]", "pipeline.enabled_steps[1]", "crtdl_preprocessing",
            "services.extractor.username", "services.extractor.password",
            "services.extractor.extraction_timeout_minutes", "services.extractor.polling_interval_seconds",
            "pipeline.max_ndjson_line_size_mb",
        )),
        *(("url-ends-in-fhir", f"services.{key}") for key in ("extractor.base_url", "pseudonymizer.url", "send.url")),
    ])  # fmt: skip
    line = peer.splitlines().index('    - "dimp"   # before the tables') + 1
    assert [finding.line for finding in loaded.warnings if finding.key == "pipeline.enabled_steps[1]"] == [line]


TODAY = "pipeline: {enabled_steps: [extractor]}\nservices: {extractor: {base_url: 'http://a.example%s'}}\n"


@pytest.mark.parametrize(
    ("keys", "mode", "key"),
    [
        ("server_url: http://h, project_identifier: P", "transfer_load", "services.send.transfer.project_identifier"),
        ("s3: {bucket: b}", "s3_upload", "services.send.s3.bucket"),
    ],
)
def test_a_missing_mode_is_an_error_that_names_the_mode_of_the_other_keys(
    errors: Errors, keys: str, mode: str, key: str
) -> None:
    found = errors(f"services: {{send: {{{keys}}}}}\npipeline: {{enabled_steps: [local_import, send]}}\n")
    assert found["required-key", "services.send.send_as"].hint == f"set it to {mode}, the mode that {key} is for"


def test_in_a_file_with_names_of_today_a_url_with_fhir_is_an_error(errors: Errors) -> None:
    assert set(errors(TODAY % "/fhir")) == {("url-ends-in-fhir", "services.extractor.base_url")}


@pytest.mark.parametrize(
    ("both", "key"),
    [
        ("services: {torch: {base_url: 'http://a'}, extractor: {base_url: 'http://a'}}", "services.torch"),
        ("services: {pseudonymizer: {url: 'http://a'}, dimp: {url: 'http://b'}}", "services.dimp"),
        (
            "services: {crtdl_preprocessing: {enabled: false}}\ncrtdl_preprocessing: {enabled: true}",
            "crtdl_preprocessing",
        ),
        ("services: {send: {server_url: 'http://a', url: 'http://a'}}", "services.send.server_url"),
    ],
)
def test_both_names_at_once_are_an_error(errors: Errors, both: str, key: str) -> None:
    assert ("deprecated-and-current", key) in errors(f"pipeline: {{enabled_steps: [local_import]}}\n{both}\n")


@pytest.mark.parametrize(
    ("variables", "url", "hint"),
    [
        (
            {"AETHER_SERVICES_TORCH_BASE_URL": "http://b.example/fhir"},
            "http://b.example",
            "use APP_SERVICES_EXTRACTOR_BASE_URL",
        ),
        (
            {"AETHER_SERVICES_EXTRACTOR_BASE_URL": "http://b.example"},
            "http://b.example",
            "use APP_SERVICES_EXTRACTOR_BASE_URL",
        ),
        (
            {
                "AETHER_SERVICES_TORCH_BASE_URL": "http://b.example",
                "APP_SERVICES_EXTRACTOR_BASE_URL": "http://c.example",
            },
            "http://c.example",
            "use APP_SERVICES_EXTRACTOR_BASE_URL",
        ),
    ],
)
def test_variables_of_the_peer_tool_come_after_those_of_today(
    load: Load, variables: dict[str, str], url: str, hint: str
) -> None:
    loaded = load(TODAY % "", env=variables)
    assert loaded.config.services.extractor.base_url == url
    assert hint in [finding.hint for finding in loaded.warnings]


def test_a_variable_of_the_peer_tool_that_names_no_key_is_warned_of(load: Load) -> None:
    (warning,) = load(TODAY % "", env={"AETHER_SERVICES_TORCH_BASE_URI": "x"}).warnings
    assert (warning.reference, warning.key) == ("unknown-variable", "AETHER_SERVICES_TORCH_BASE_URI")


def test_older_names_are_accepted_on_the_command_line(load: Load) -> None:
    overrides = ["services.torch.base_url=http://d.example", "pipeline.enabled_steps=[torch]"]
    loaded = load(TODAY % "", overrides=overrides)
    assert loaded.config.services.extractor.base_url == "http://d.example"
    assert [finding.reference for finding in loaded.warnings] == ["deprecated-key"] * 2


def test_a_migrated_file_keeps_its_values_and_comments_and_has_no_older_name(load: Load, peer: str) -> None:
    written = migrate(peer)
    loaded = load(written)
    assert loaded.config == load(peer).config
    assert loaded.warnings == ()
    assert_kept(peer, written)
    assert migrate(written) == written


def assert_kept(old: str, new: str) -> None:
    """Every comment of the old text is in the new one."""
    comments = [line[line.index("#") :] for line in old.splitlines() if "#" in line]
    assert [comment for comment in comments if comment not in new] == []


TORCH = "services:\n    torch:\n        base_url: http://t.example\n"
STEPS_OF_TORCH = "pipeline:\n    enabled_steps: [torch]\n"


@pytest.mark.parametrize(
    "text",
    [
        "crtdl_preprocessing:\n    enabled: false\nservices:\n    torch:\n        base_url: http://t.example\n",
        TORCH + "    send:\n        transfer:\n            organization_identifier: o\n        project_identifier: p\n",
        'services: {"torch": {"base_url": "http://t.example/fhir", "polling_interval_seconds": 7}}\n',
        "crtdl_preprocessing:\n    enabled: false\nservices: {torch: {base_url: http://t.example}}\n",
        TORCH + "        username: u\n        password: p\n        auth: {}\n",
        "services:\n    torch: {\n      base_url: http://t.example,\n      username: u,\n      password: p\n    }\n",
        TORCH + "        username : u\n        password: ab:cd\n",
    ],
    ids=["4 blanks", "into a block", "JSON", "services in brackets", "auth in brackets", "brackets over lines",
         "blank before the colon"],
)  # fmt: skip
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_unusual_files_are_migrated_as_far_as_they_mean_the_same(load: Load, text: str, line_end: str) -> None:
    old = (text + STEPS_OF_TORCH).replace("\n", line_end)
    new = migrate(old)
    assert load(new).config == load(old).config
    assert "torch" not in new
    assert new.count("\n") == new.count(line_end)


@pytest.mark.parametrize(
    "text",
    [
        "services:\n  torch: {base_url: &u http://t.example}\n  dimp: {url: *u}\n",
        "services:\n  torch:\n    <<: {base_url: http://t.example}\n",
        "services:\n  torch:\n    base_url:\thttp://t.example\n",
        "services:\n  torch:\n    base_url: ${URL}\n",
        "services:\n  torch:\n    base_url: http://t.example/fhir/fhir\n",
        TORCH + '        username: u\n        password: "a\n  b"\n',
    ],
    ids=["alias", "merge key", "tab", "variable with /fhir", "twice /fhir", "text over lines"],
)
def test_a_file_that_would_mean_something_else_is_left_alone(sluice: Commands, tmp_path: Path, text: str) -> None:
    (tmp_path / "old.yaml").write_text(text + STEPS_OF_TORCH)
    hiding = {"URL": "http://t.example/fhir", "APP_SERVICES_EXTRACTOR_BASE_URL": "http://x.example"}
    ran = sluice("config", "migrate", "old.yaml", "new.yaml", env=hiding)
    assert (ran.code, (tmp_path / "new.yaml").exists()) == (2, False)
    assert "error[migration-differs]" in ran.err


def test_two_names_in_variables_are_an_error_and_a_later_flag_wins(load: Load, errors: Errors) -> None:
    both = {"AETHER_SERVICES_TORCH_BASE_URL": "http://a", "AETHER_SERVICES_EXTRACTOR_BASE_URL": "http://b"}
    assert ("deprecated-and-current", "services.extractor.base_url") in errors(TODAY % "", env=both)
    # A job that goes on has the flags it was started with, and then those that are given now.
    flags = ["services.torch.base_url=http://a", "services.extractor.base_url=http://b"]
    assert load(TODAY % "", overrides=flags).config.services.extractor.base_url == "http://b"


BLOCKS = {
    "torch": [
        "base_url: 'http://t.example/fhir'",
        'username: "u"',
        "password: p  # a comment",
        "# a line\n    extraction_timeout_minutes: 7",
        "polling_interval_seconds: '4'",
        "file_ready_retries: 3",
    ],
    "dimp": ["url: http://p.example/FHIR/", "bundle_split_threshold_mb: 5", "timeout: 1m"],
    "send": [
        "send_as: transfer_load",
        "server_url: http://s.example/fhir",
        "project_identifier: P",
        "# who\n    organization_identifier: O",
        "timeout: PT1M",
    ],
    "parquet_conversion": ["url: ''"],
    "validation": ["url: http://v.example/fhir"],
}


@st.composite
def peer_files(draw: st.DrawFn) -> str:
    """Files of the peer tool: any blocks and keys, in any order."""
    blocks = []
    for name in draw(st.permutations(list(BLOCKS))):
        optional = BLOCKS[name][1:] if name == "torch" else BLOCKS[name]
        keys = draw(st.lists(st.sampled_from(optional), unique=True))
        if name == "torch":
            keys = [*BLOCKS[name][:1], *keys]
        if ('username: "u"' in keys) != ("password: p  # a comment" in keys):
            keys = [key for key in keys if "username" not in key and "password" not in key]
        if keys:
            blocks.append(f"  {name}:\n" + "".join(f"    {key}\n" for key in draw(st.permutations(keys))))
    steps = draw(st.sampled_from(["[torch]", "[torch, wait]", "\n    - torch\n    - wait\n"]))
    parts = ["services:\n" + "".join(blocks), f"pipeline:\n  enabled_steps: {steps}\n"]
    if draw(st.booleans()):
        parts.append("# enrichment\ncrtdl_preprocessing:\n  enabled: false\n")
    return "".join(draw(st.permutations(parts)))


@given(peer_files())
@settings(deadline=None)
def test_migration_keeps_the_configuration_and_the_comments_of_any_file(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("peer") / "config.yaml"
    path.write_text(text)
    before = load_config(path, environ={})
    written = migrate(text)
    path.write_text(written)
    after = load_config(path, environ={})
    assert after.config == before.config
    assert [finding for finding in after.warnings if finding.reference == "deprecated-key"] == []
    assert_kept(text, written)


@given(peer_files())
@settings(deadline=None)
def test_a_place_is_where_its_key_and_value_stand(text: str) -> None:
    for place in places(text):
        key = text[slice(*place.key)]
        assert place.path.endswith(key)
        if place.value is not None and key:
            assert yaml.safe_load(f"{key}: {text[slice(*place.value)]}").keys() == {key}


def test_the_command_prints_or_writes_the_migrated_file_and_overwrites_nothing(
    sluice: Commands, tmp_path: Path, peer: str
) -> None:
    (tmp_path / "old.yaml").write_text(peer.replace('"http://torch.example/fhir/"', "${TORCH_URL}"))
    printed = sluice("config", "migrate", "old.yaml")
    assert printed.code == 0
    assert printed.err == (
        "warning: a variable gives services.extractor.base_url: in the new file its value must not end in /fhir\n"
    )
    assert "    base_url: ${TORCH_URL}   # its root\n" in printed.out
    assert sluice("config", "migrate", "old.yaml", "new.yaml").code == 0
    assert (tmp_path / "new.yaml").read_text() == printed.out
    assert (tmp_path / "new.yaml").stat().st_mode & 0o777 == 0o600
    again = sluice("config", "migrate", "old.yaml", "new.yaml")
    assert again.code == 2
    assert "error[config-exists]" in again.err
    (tmp_path / "old.yaml").write_text(peer.replace("3", "three"))
    broken = sluice("config", "migrate", "old.yaml", "other.yaml")
    assert (broken.code, (tmp_path / "other.yaml").exists()) == (2, False)
    assert "polling_interval_seconds" in broken.err
