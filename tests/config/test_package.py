"""The package as a whole: its imports, its speed, and no leak of a secret."""

from __future__ import annotations

import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import config
from config import ConfigError, describe_keys
from config.fields import KeyKind
from tests.config.conftest import MINIMAL, Loader

HERE = Path(config.__file__).parent


@pytest.mark.slow
def test_loading_brings_no_heavy_library_in(tmp_path: Path) -> None:
    code = (
        "import sys; from config import load_config; load_config(sys.argv[1], environ={});"
        "heavy = {'tasks', 'flows', 'deployments', 'prefect', 'httpx', 'boto3', 'starlette', 'jsonschema', 'authlib'};"
        "heavy &= set(sys.modules);"
        "sys.exit(' '.join(sorted(heavy)) or 0)"
    )
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL)
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        text=True,
        cwd=HERE.parent,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


CANARY = "canary-5f1d"

SECRETS = [info.key for info in describe_keys() if info.kind is KeyKind.SECRET]


def nested(key: str, value: str) -> str:
    names = key.split(".")
    return "{" + ": {".join(names) + f": {value}" + "}" * len(names)


@pytest.mark.parametrize("key", SECRETS)
def test_a_secret_shows_nowhere_in_a_loaded_configuration(loader: Loader, key: str) -> None:
    block, _, name = key.rpartition(".")
    others = {
        "password": {"username": "u"},
        "oauth_client_secret": {"oauth_client_id": "c", "oauth_issuer_uri": "https://h.example"},
    }.get(name, {})
    loaded = loader.load(
        MINIMAL,
        env={f"APP_{block}_{k}".upper().replace(".", "_"): v for k, v in others.items()} | {"S": CANARY},
        overrides=[f"{key}=${{S}}"],
    )
    value: Any = loaded.config
    for part in key.split("."):
        value = getattr(value, part)
    assert value.get_secret_value() == CANARY
    shown = repr(loaded) + str(loaded.effective()) + str(loaded.config) + loaded.config.model_dump_json()
    assert CANARY not in shown + repr(loaded.config.model_dump())


@pytest.mark.parametrize("info", describe_keys(), ids=lambda info: info.key)
@pytest.mark.parametrize("shape", ["{}", "[{}]", "{{x: {}}}", "'${{{}'", "!{} x", "{}: {}: {}", "[[{}]]", '"{}\\n"'])
def test_no_error_quotes_a_value_whatever_key_it_stands_in(loader: Loader, info: Any, shape: str) -> None:
    text = shape.replace("{}", CANARY).replace("{{", "{").replace("}}", "}")
    with pytest.raises(ConfigError) as caught:  # if nothing else, the steps are missing or wrong
        loader.load(f"{nested(info.key, text)}\n")
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert CANARY.encode() not in pickle.dumps(caught.value.findings)
