"""The base job templates of a Kubernetes and a Docker work pool, rendered as a worker renders them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prefect.utilities.templating import apply_values, find_placeholders

from tests.conftest import ROOT

POOLS = ROOT / "deployments" / "pools"
SET_BY_PREFECT = {"command": "prefect flow-run execute", "labels": {"prefect.io/flow-run-id": "1"}, "name": "a-run"}
DOCKER = {
    "auto_remove", "command", "container_create_kwargs", "env", "image", "image_pull_policy", "labels", "mem_limit",
    "memswap_limit", "name", "network_mode", "networks", "privileged", "registry_credentials", "stream_output",
    "volumes",
}  # fmt: skip
"""Fields of ``DockerWorkerJobConfiguration`` of prefect-docker, which is not installed here."""


def template(pool: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((POOLS / f"{pool}.json").read_text())
    return found


def rendered(pool: str, **values: Any) -> dict[str, Any]:
    """Return the configuration of a run, with the defaults of the variables and ``values``."""
    variables = template(pool)["variables"]["properties"]
    defaults = {name: one["default"] for name, one in variables.items() if "default" in one}
    found: dict[str, Any] = apply_values(template(pool)["job_configuration"], defaults | SET_BY_PREFECT | values)
    return found


@pytest.mark.parametrize("pool", ["kubernetes", "docker"])
def test_every_placeholder_is_a_variable_with_a_value(pool: str) -> None:
    names = {one.name for one in find_placeholders(template(pool)["job_configuration"])}
    assert names == set(template(pool)["variables"]["properties"])
    assert find_placeholders(rendered(pool)) == set()


def test_a_job_of_kubernetes_keeps_the_shared_directory_and_ends_once() -> None:
    manifest = rendered("kubernetes", image="registry.example/sluice:1")["job_manifest"]
    spec = manifest["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "Job")
    assert (manifest["spec"]["backoffLimit"], spec["restartPolicy"]) == (0, "Never")  # the job submits it again
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in spec["volumes"]}
    assert {one["mountPath"] for one in container["volumeMounts"]} >= {"/var/lib/sluice", "/etc/sluice"}
    assert spec["securityContext"]["runAsUser"] == 10001  # of the Containerfile
    assert spec["terminationGracePeriodSeconds"] > 10  # a stop takes ten seconds
    assert container["envFrom"] == [{"secretRef": {"name": "sluice"}}]
    assert container["image"] == "registry.example/sluice:1"


def test_a_container_of_docker_has_the_shared_directory_and_no_rights() -> None:
    container = rendered("docker")
    assert set(container) <= DOCKER
    assert container["volumes"] == ["jobs:/var/lib/sluice", "/etc/sluice:/etc/sluice:ro"]
    assert container["container_create_kwargs"]["cap_drop"] == ["ALL"]
    assert not container["privileged"]
