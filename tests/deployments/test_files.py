"""Packaged operation: compose file, container file and units, as far as they can be read here."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

DEPLOYMENTS = ROOT / "deployments"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text())["services"]
CONTAINERFILE = (DEPLOYMENTS / "Containerfile").read_text(encoding="utf-8")
SERVER_ENV = (DEPLOYMENTS / "server.env").read_text(encoding="utf-8")
UNITS = {unit.stem: unit.read_text(encoding="utf-8") for unit in (DEPLOYMENTS / "systemd").glob("*.service")}
SECRET = re.compile(r"PASSWORD|AUTH|SECRET|KEY|TOKEN")


def test_server_and_worker_are_prefects_own_in_containers_and_units() -> None:
    assert SERVICES["server"]["command"] == ["prefect", "server", "start"]
    assert re.findall(r"(?m)^ExecStart=\S+/bin/(.+)$", UNITS["sluice-server"]) == ["prefect server start"]
    worker = "prefect worker start --pool sluice"
    assert " ".join(SERVICES["worker"]["command"]) == f"{worker} --with-healthcheck"
    assert re.findall(r"(?m)^ExecStart=\S+/bin/(.+)$", UNITS["sluice-worker"]) == [worker]
    assert yaml.safe_load(CONTAINERFILE.rpartition("\nCMD ")[2]) == worker.split()


def test_no_port_is_open_beyond_loopback_and_the_database_is_reached_by_the_server_only() -> None:
    assert {name: one["ports"] for name, one in SERVICES.items() if "ports" in one} == {
        "server": ["127.0.0.1:4200:4200"]
    }
    assert SERVICES["database"]["networks"] == ["inner"]
    assert "PREFECT_SERVER_API_HOST=127.0.0.1\n" in SERVER_ENV


def test_no_secret_stands_in_a_file_and_none_may_be_left_out() -> None:
    environments = [service.get("environment", {}) for service in SERVICES.values()]
    secrets = [value for one in environments for name, value in one.items() if SECRET.search(name)]
    assert len(secrets) == 5
    assert all(re.fullmatch(r"\$\{SLUICE_[A-Z_]+:\?[^}]+\}", value) for value in secrets)
    for text in (CONTAINERFILE, SERVER_ENV, *UNITS.values()):
        assert not re.search(r"(?m)^[^#]*(PASSWORD|AUTH_STRING|TOKEN|SECRET)\s*=", text)


def test_no_secret_beside_the_compose_file_gets_into_the_image() -> None:
    ignored = (DEPLOYMENTS / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    for rule in ("**/.env", "**/*.env", "deployments/configuration"):
        assert ignored.index(rule) > ignored.index("!deployments")


def test_the_dask_cluster_is_encrypted_and_its_containers_are_as_the_worker() -> None:
    dask = yaml.safe_load((DEPLOYMENTS / "dask.yaml").read_text())
    for name in ("dask-scheduler", "dask-worker"):
        service = dask["services"][name]
        assert service["extends"] == {"file": "compose.yaml", "service": "worker"}
        assert "tls" in " ".join(service["command"])
        assert "ports" not in service
        assert service["environment"] == dask["services"]["worker"]["environment"] == dask["x-dask"]
    assert dask["x-dask"]["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "true"
    assert '".${EXTRAS}"' in CONTAINERFILE


@pytest.mark.parametrize("name", ["server", "deploy", "worker"])
def test_a_container_of_ours_may_do_nothing_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "\nUSER 10001:10001\n" in CONTAINERFILE


def test_every_prefect_setting_exists_and_the_server_is_set_up_as_the_local_one() -> None:
    from prefect.settings import Settings

    from flows.prefect.server import SETTINGS

    compose = (DEPLOYMENTS / "compose.yaml").read_text(encoding="utf-8")
    texts = (CONTAINERFILE, SERVER_ENV, compose, (DEPLOYMENTS / "prefect.yaml").read_text(), *UNITS.values())
    named = {name for text in texts for name in re.findall(r"\bPREFECT_[A-Z0-9_]+", text)} - {"PREFECT_HOME"}
    assert len(named) > 15
    assert sorted(named - settings_of(Settings)) == []
    written = dict(line.split("=", 1) for line in SERVER_ENV.splitlines() if "=" in line and line[0] != "#")
    shared = {name for name in SETTINGS if name.startswith("PREFECT_SERVER_") and "EPHEMERAL" not in name}
    assert {name: written.get(name) for name in shared} == {name: SETTINGS[name] for name in shared}


def settings_of(model: Any) -> set[str]:
    """Return the variables of Prefect's settings, by its own aliases and prefixes."""
    prefix = model.model_config.get("env_prefix", "")
    names: set[str] = set()
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and hasattr(kind, "model_fields"):
            names |= settings_of(kind)
        alias = field.validation_alias
        choices = [str(choice) for choice in getattr(alias, "choices", [alias] if alias else [])]
        names |= {choice.upper() for choice in choices} | {f"{prefix}{name}".upper()}
    return names
