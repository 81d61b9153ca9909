"""Packaged operation (4-product.md §6): compose file and container file, as far as they can be read here.

Nothing is built or started here.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from flows.prefect.address import QUIET
from flows.prefect.server import SETTINGS
from tests.conftest import ROOT

DEPLOYMENTS = ROOT / "deployments"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = sorted(name for name, service in SERVICES.items() if service["image"].startswith("sluice:"))
CONTAINERFILE = (DEPLOYMENTS / "Containerfile").read_text(encoding="utf-8")
UNITS = sorted((DEPLOYMENTS / "systemd").glob("*.service"))
SECRET = re.compile(r"PASSWORD|AUTH|SECRET|KEY|TOKEN")


class TestCompose:
    def test_it_has_a_database_a_server_a_worker_and_what_deploys(self) -> None:
        assert set(SERVICES) == {"database", "server", "deploy", "worker"}
        assert set(OURS) == {"server", "deploy", "worker"}

    @pytest.mark.parametrize("name", SERVICES)
    def test_every_image_is_pinned_by_a_tag(self, name: str) -> None:
        tag = SERVICES[name]["image"].partition(":")[2]
        assert re.match(r"\d+\.\d+", tag), SERVICES[name]["image"]

    def test_the_image_is_built_once_for_all_services_and_never_pulled(self) -> None:
        assert [name for name in OURS if "build" in SERVICES[name]] == ["server"]
        assert {SERVICES[name]["pull_policy"] for name in OURS} == {"never"}

    def test_what_pip_needs_for_the_build_reaches_no_container(self) -> None:
        assert set(SERVICES["server"]["build"]["secrets"]) == set(COMPOSE["secrets"])
        assert not any("secrets" in service for service in SERVICES.values())
        assert all(one["file"].endswith(":-/dev/null}") for one in COMPOSE["secrets"].values()), "none is needed"

    def test_the_server_copies_its_pages_to_where_it_may_write(self) -> None:
        place = SERVICES["server"]["environment"]["PREFECT_SERVER_UI_STATIC_DIRECTORY"]
        mounted = [one.split(":")[1] for one in SERVICES["server"]["volumes"]]
        assert any(place.startswith(f"{one}/") for one in mounted)

    def test_where_prefect_would_look_for_lists_on_the_internet_nobody_is(self) -> None:
        prefect = find_spec("prefect")
        assert prefect
        assert prefect.origin
        asks = Path(prefect.origin).with_name("server").joinpath("api/collections.py").read_text(encoding="utf-8")
        hosts = {urlsplit(url).hostname for url in re.findall(r"https?://[^\s\"'{}]+", asks)}
        assert hosts
        assert {f"{host}:127.0.0.1" for host in hosts} == set(SERVICES["server"]["extra_hosts"])

    def test_deployments_that_cannot_be_made_are_not_tried_for_ever(self) -> None:
        assert SERVICES["deploy"]["restart"] == "no"

    def test_every_service_that_stays_has_a_health_check_and_is_waited_for(self) -> None:
        for name, service in SERVICES.items():
            if name == "deploy":
                assert service["healthcheck"] == {"disable": True}
            else:
                assert service["healthcheck"]["test"]
                assert service["restart"] == "unless-stopped"
        assert SERVICES["server"]["depends_on"]["database"]["condition"] == "service_healthy"
        assert SERVICES["worker"]["depends_on"]["server"]["condition"] == "service_healthy"
        assert SERVICES["worker"]["depends_on"]["deploy"]["condition"] == "service_completed_successfully"

    def test_no_port_is_open_beyond_loopback(self) -> None:
        ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
        assert list(ports) == ["server"]
        assert all(port.startswith("127.0.0.1:") for port in ports["server"])
        assert not any("network_mode" in service for service in SERVICES.values())

    def test_the_database_is_reached_by_the_server_s_network_only_which_leads_nowhere(self) -> None:
        assert SERVICES["database"]["networks"] == ["inner"]
        assert COMPOSE["networks"]["inner"] == {"internal": True}

    def test_no_secret_stands_in_the_file_and_none_may_be_left_out(self) -> None:
        found = 0
        for service in SERVICES.values():
            for name, value in service.get("environment", {}).items():
                if SECRET.search(name):
                    found += 1
                    assert re.fullmatch(r"\$\{SLUICE_[A-Z_]+:\?[^}]+\}", value), name
        assert found == 5

    def test_the_server_asks_for_a_login_and_its_clients_have_it(self) -> None:
        login = SERVICES["server"]["environment"]["PREFECT_SERVER_API_AUTH_STRING"]
        for name in ("worker", "deploy"):
            assert SERVICES[name]["environment"]["PREFECT_API_AUTH_STRING"] == login
            assert "PREFECT_SERVER_API_AUTH_STRING" not in SERVICES[name]["environment"]

    def test_the_server_is_set_up_as_the_embedded_one_is(self) -> None:
        assert SETTINGS.items() <= SERVICES["server"]["environment"].items()

    @pytest.mark.parametrize("name", OURS)
    def test_no_telemetry_and_no_forgotten_second_server(self, name: str) -> None:
        assert QUIET.items() <= SERVICES[name]["environment"].items()

    @pytest.mark.parametrize("name", OURS)
    def test_a_service_of_ours_may_do_nothing_it_does_not_need(self, name: str) -> None:
        service = SERVICES[name]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service.get("privileges", service.get("privileged"))
        assert "user" not in service, "the image says who, and it is not root"

    def test_data_and_records_are_in_volumes(self) -> None:
        assert set(COMPOSE["volumes"]) == {"database", "jobs", "server"}
        assert "jobs:/var/lib/sluice" in SERVICES["worker"]["volumes"]
        assert any(one.startswith("database:") for one in SERVICES["database"]["volumes"])

    def test_every_prefect_setting_exists(self) -> None:
        from prefect.settings import Settings

        known = settings_of(Settings) | {"PREFECT_API_URL"}
        texts = [CONTAINERFILE, *(unit.read_text() for unit in UNITS)]
        named = {name for text in texts for name in re.findall(r"\bPREFECT_[A-Z0-9_]+", text)}
        named |= {name for s in SERVICES.values() for name in s.get("environment", {}) if name.startswith("PREFECT_")}
        named -= {"PREFECT_HOME"}
        assert len(named) > 20
        assert sorted(named - known) == []


PAGE = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")


class TestContainersPage:
    def test_every_variable_of_the_compose_file_is_documented(self) -> None:
        text = (DEPLOYMENTS / "compose.yaml").read_text(encoding="utf-8")
        variables = set(re.findall(r"\$\{(SLUICE_\w+)", text))
        assert len(variables) == 7
        for name in variables:
            assert f"| `{name}` |" in PAGE


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


class TestContainerfile:
    def test_every_stage_stands_on_a_base_pinned_to_the_patch(self) -> None:
        assert re.search(r"^ARG PYTHON=python:3\.11\.\d+-slim-\w+$", CONTAINERFILE, re.MULTILINE)
        assert re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE) == ["${PYTHON}", "${PYTHON}"]

    def test_it_does_not_run_as_root(self) -> None:
        users = re.findall(r"^USER (.+)$", CONTAINERFILE, re.MULTILINE)
        assert users == ["10001:10001"]

    def test_everything_installed_has_its_exact_version_from_the_constraints(self) -> None:
        installs = re.findall(r"pip install (.+)$", CONTAINERFILE, re.MULTILINE)
        assert installs
        assert all("--constraint constraints.txt" in one for one in installs)

    def test_pip_has_the_settings_of_the_machine_while_it_runs_and_in_no_layer(self) -> None:
        runs = [run for run in re.split(r"\n(?=[A-Z])", CONTAINERFILE) if "pip install" in run]
        assert len(runs) == 2
        for run in runs:
            assert "--mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=certificates" in run

    def test_what_it_copies_beside_the_packages_can_be_read_by_its_user(self) -> None:
        last = CONTAINERFILE.rpartition("\nFROM ")[2]
        assert all("--from=build" in line or "--chmod=0644" in line for line in re.findall(r"(?m)^COPY .+$", last))

    def test_it_leaves_no_volume_behind_that_nobody_named(self) -> None:
        assert "\nVOLUME" not in CONTAINERFILE

    def test_what_is_installed_brings_all_packages_of_the_project(self) -> None:
        copied = re.findall(r"^COPY (\w+) \1$", CONTAINERFILE, re.MULTILINE)
        assert copied == ["config", "tasks", "flows", "deployments"]
        ignored = (DEPLOYMENTS / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
        for name in re.findall(r"^COPY (?!--)(.+) \S+$", CONTAINERFILE, re.MULTILINE):
            for source in name.split():
                assert f"!{source.split('/')[0]}" in ignored, source
                assert (ROOT / source).exists()

    def test_no_secret_and_no_configuration_beside_the_compose_file_gets_into_the_image(self) -> None:
        """``SLUICE_WORKER_ENV``, ``SLUICE_CONFIG``, ``.env`` lie in a directory that is copied; the last rule wins."""
        ignored = (DEPLOYMENTS / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
        for rule in ("**/.env", "**/*.env", "deployments/configuration", "deployments/site.yaml"):
            assert ignored.index(rule) > ignored.index("!deployments")
        text = (DEPLOYMENTS / "compose.yaml").read_text(encoding="utf-8")
        assert {"./configuration", "./worker.env"} == set(re.findall(r":-(\./[^}]+)\}", text))

    def test_it_stops_by_sigterm_says_how_it_is_and_sends_nothing_to_anybody(self) -> None:
        assert "\nSTOPSIGNAL SIGTERM\n" in CONTAINERFILE
        assert "\nHEALTHCHECK " in CONTAINERFILE
        assert "DO_NOT_TRACK=1" in CONTAINERFILE

    def test_it_names_no_secret_and_no_registry_of_packages(self) -> None:
        assert not re.search(r"(PASSWORD|AUTH_STRING|TOKEN|SECRET)\s*=", CONTAINERFILE)
        assert "://" not in CONTAINERFILE.replace("http://127.0.0.1:8080/health", "")
