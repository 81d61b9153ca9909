"""Services that quote the whole request in what they answer: no credential stays in what a job keeps (document 3 §1).

The server is every service, the OAuth issuer and the proxy at once. Everything that a run leaves is scanned for each
secret, and for its Base64 as headers have it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from tests.conftest import Commands, processes_with, wait_until
from tests.e2e.test_canaries import databases
from tests.peers.extraction import project as extraction_project
from tests.peers.honest import honest
from tests.peers.project import write_input
from tests.peers.server import Loopback, Reply, SeenRequest, loopback

PASSWORD = "canary/pass+word=7f3a"
CLIENT_SECRET = "canary&client secret-91bc"
API_KEY = "canary-apikey-55d2"
TOKEN = "canary.token-c0ffee"
PROXY_PASSWORD = "canary@proxy-3128"
S3_SECRET = "canary-s3secret-1b2c3d4e5f"
RULE_KEY = "canary-hash-key-d00d"
S3_KEY = "CANARYACCESSKEYID"
SECRETS = (PASSWORD, CLIENT_SECRET, API_KEY, TOKEN, PROXY_PASSWORD, S3_SECRET, S3_KEY, RULE_KEY)
PAIRS = (f"loader:{PASSWORD}", f"client:{CLIENT_SECRET}", f"jo:{PROXY_PASSWORD}")
RULES = f"fhirPathRules: [{{path: Patient.name, method: cryptoHash}}]\nparameters: {{cryptoHashKey: {RULE_KEY}}}\n"
MARK = "[blanked]"


def forms() -> Iterator[bytes]:
    """Yield the forms of the secrets that must not be found anywhere."""
    for secret in SECRETS:
        yield from (secret.encode(), json.dumps(secret)[1:-1].encode(), quote(secret, safe="").encode())
    for text in (*PAIRS, *SECRETS, RULES):
        yield base64.b64encode(text.encode()).rstrip(b"=")


def echo(seen: SeenRequest, gateway_texts: Sequence[str] = ()) -> Reply:
    """Return the request as JSON with the ``gateway_texts``, or a token to a token request."""
    if "openid-configuration" in seen.target:
        return Reply(404)
    if seen.target.endswith("/token"):
        token = {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 600}
        return Reply(200, json.dumps(token).encode(), {"Content-Type": "application/json"})
    if "list-type=2" in seen.target:
        return Reply(200, b"<ListBucketResult></ListBucketResult>", {"Content-Type": "application/xml"})
    if seen.method in ("GET", "HEAD") and "Task" not in seen.target:
        return Reply(200, b"{}")
    issue = {"severity": "error", "code": "processing", "diagnostics": f"{seen.headers} {seen.body!r}"}
    said = {
        "resourceType": "OperationOutcome", "issue": [issue], "method": seen.method, "target": seen.target,
        "headers": seen.headers, "upper": {name.upper(): value for name, value in seen.headers.items()},
        "body": seen.body.decode("utf-8", "replace"),
        "decoded": gateway_texts,
    }  # fmt: skip
    headers = {"Content-Type": "application/fhir+json", "X-Echo": " ".join(seen.headers.values())}
    return Reply(400, json.dumps(said).encode(), headers)


@pytest.fixture
def gateway_texts() -> list[str]:
    """Secrets that the gateway in front of the service decodes and quotes besides the request."""
    return []


@pytest.fixture
def server(gateway_texts: list[str]) -> Iterator[Loopback]:
    with loopback(lambda seen: honest(seen) or echo(seen, gateway_texts)) as running:
        yield running


BASIC = {"username": "loader", "password": "${PASSWORD}", "api_key": "${API_KEY}"}


def oauth(url: str) -> dict[str, str]:
    return {
        "oauth_issuer_uri": url, "oauth_client_id": "client", "oauth_client_secret": "${CLIENT_SECRET}",
        "api_key": "${API_KEY}", "api_key_header": "X-Gateway-Key",
    }  # fmt: skip


BEHIND = "http://service.invalid"
"""Reached through the proxy only."""


def configured(step: str, url: str) -> dict[str, object]:
    """``services`` for one step, with what it can send."""
    every: dict[str, dict[str, object]] = {
        "pseudonymizer": {
            "pseudonymizer": {"url": BEHIND, "auth": BASIC, "anonymization_config": "rules.yaml"},
            "send": {"auth": oauth(url)},
        },
        "validation": {"validation": {"url": BEHIND}, "pseudonymizer": {"auth": BASIC}, "send": {"auth": oauth(url)}},
        "send": {"send": {"send_as": "direct_resource_load", "url": url, "auth": oauth(url)}},
        "transfer": {
            "send": {
                "send_as": "transfer_load", "url": url, "auth": BASIC,
                "transfer": {"project_identifier": "p", "organization_identifier": "o"},
            }
        },
        "s3": {
            "send": {
                "send_as": "s3_upload", "auth": {"username": "loader", "password": "${PASSWORD}"},
                "s3": {
                    "bucket": "bucket", "region": "eu-central-1", "endpoint": url, "use_path_style": True,
                    "access_key_id": "${S3_KEY}", "secret_access_key": "${S3_SECRET}",
                },
            }
        },
        "extractor": {"extractor": {"base_url": url, "auth": BASIC}, "pseudonymizer": {"auth": oauth(url)}},
    }  # fmt: skip
    return every[step]


KEPT = {
    "pseudonymizer": "pseudonymizer/failed/0001.txt",
    "validation": "validation/failed/0001.txt",
    "send": "send/failed/0001.json",
    "transfer": None,
    "s3": None,
    "extractor": "extraction/submission-refused.json",
}


def slow(step: str) -> object:
    return pytest.param(step, marks=pytest.mark.campaign)


@pytest.mark.parametrize("step", ["pseudonymizer", "send", *map(slow, ("validation", "transfer", "s3", "extractor"))])
def test_what_a_job_keeps_of_an_echo_holds_no_credential(
    sluice_alone: Commands, tmp_path: Path, server: Loopback, gateway_texts: list[str], step: str
) -> None:
    name = "send" if step in ("transfer", "s3") else step
    document = {
        "services": {"local_import": {"dir": "data"}} | configured(step, server.url),
        "pipeline": {"enabled_steps": [name] if name == "extractor" else ["local_import", name]},
        "retry": {"max_attempts": 1},
        "jobs_dir": "jobs",
    }
    inputs: list[str] = []
    if name == "extractor":
        extraction_project(tmp_path, server.url)
        inputs = ["query.json"]
    else:
        write_input(tmp_path / "data", patients=1, files=1)
        (tmp_path / "data" / "core.ndjson").unlink()
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(document))
    secrets = dict(zip(("PASSWORD", "CLIENT_SECRET", "API_KEY"), SECRETS, strict=False)) | {"S3_SECRET": S3_SECRET}
    secrets["S3_KEY"] = S3_KEY
    text = (tmp_path / "config.yaml").read_text()
    gateway_texts += [secret for name, secret in secrets.items() if f"${{{name}}}" in text]
    gateway_texts += [pair for pair in PAIRS if any(secret in pair for secret in gateway_texts)] + [
        PROXY_PASSWORD,
        PAIRS[2],
    ]
    gateway_texts += [S3_KEY] if step == "s3" else []
    gateway_texts += [TOKEN] if step == "send" else [RULE_KEY] if step == "pseudonymizer" else []
    proxy = server.url.replace("//", f"//jo:{quote(PROXY_PASSWORD, safe='')}@")
    proxies = {"HTTP_PROXY": proxy, "NO_PROXY": "127.0.0.1"}
    ran = sluice_alone("pipeline", "start", "config.yaml", *inputs, env=secrets | proxies)
    assert ran.code == (3 if step == "s3" else 1), ran.out + ran.err
    told = sluice_alone("pipeline", "status", "config.yaml", ran.job, "--json", env=secrets)
    wait_until(lambda: processes_with(str(tmp_path / "jobs")) == [], 60)

    mine = {"config.yaml", "rules.yaml", "query.json"}
    left = [(str(path), path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file() and path.name not in mine]
    outputs = [("output", text.encode()) for one in (ran, told) for text in (one.out, one.err)]
    places = [*left, *outputs, *databases(tmp_path)]
    assert [(place, form) for place, content in places for form in forms() if form in content] == []

    sent = " ".join(value for seen in server.seen for value in seen.headers.values())
    assert (TOKEN if step == "send" else base64.b64encode(PAIRS[0].encode()).decode()) in sent or step == "validation"
    if (kept := KEPT[step]) is not None:
        path = tmp_path / "jobs" / ran.job / kept
        assert path.stat().st_mode & 0o777 == 0o600
        assert MARK in path.read_text()
        assert "user-agent" in path.read_text()
