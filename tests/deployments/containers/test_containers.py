"""``docs/deployment.md``, "Containers", on a real container runtime: built, started, killed, stopped, taken down.

``4-product.md`` §6; issue 7, "Deliver" 1 and 3. The commands are the page's own. What is needed: ``site.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.fhir.app import FhirOptions, fhir_service
from tests.browser.conftest import CANARIES, RESOURCES, write_patients
from tests.conftest import wait_until
from tests.deployments.containers.forward import forwarded_port
from tests.deployments.containers.site import HOSPITAL, LOADER_PASSWORD, ContainerSite, new_site, write
from tests.peers.bridge import Bridge, bridge

pytestmark = [pytest.mark.campaign, pytest.mark.real, pytest.mark.timeout(1800)]

CONFIG = "/etc/sluice/nightly.yaml"
TRANSACTIONS = 18
"""One for each Bundle of the input."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ContainerSite]:
    with new_site(tmp_path) as made:
        yield made


@dataclass
class ContainerHospital:
    """A FHIR server that the workers reach, and a bridge that holds requests before they reach it."""

    url: str
    between: Bridge

    def entries(self) -> int:
        """Return the transactions that arrived."""
        seen = httpx.get(f"{self.url}/_sandbox/requests", trust_env=False).json()["requests"]
        return sum(request["method"] == "POST" for request in seen)

    def holds(self) -> dict[str, int]:
        """Count its resources by type."""
        return dict(httpx.get(f"{self.url}/_sandbox/counts", trust_env=False).json())


@pytest.fixture
def hospital(site: ContainerSite, tmp_path: Path) -> Iterator[ContainerHospital]:
    """Containers that are up, and a configuration that they can run."""
    started, listed = site.page("docker compose --file deployments/compose.yaml up")
    assert started.code == 0, started.err[-3000:]
    assert listed.code == 0, listed.err
    wait_until(site.healthy, 180)
    assert write_patients(site.export / "data") == RESOURCES
    (site.export / "data").chmod(0o755)
    for path in (site.export / "data").iterdir():
        path.chmod(0o644)
    with ExitStack() as stack:
        service = stack.enter_context(serve_in_thread(fhir_service(FhirOptions(state=tmp_path / "fhir"))))
        between = stack.enter_context(bridge(service.url))
        found = site.compose("exec", "worker", "getent", "hosts", HOSPITAL)
        assert found.code == 0, found.err
        port = stack.enter_context(forwarded_port(found.out.split()[0], between.url))
        text = f"""
services:
  local_import: {{dir: /srv/export/data}}
  send:
    send_as: direct_resource_load
    url: http://{HOSPITAL}:{port}
    auth: {{username: loader, password: "${{LOADER_PASSWORD}}"}}
    batch_size: 2
    max_concurrent_requests: 1
pipeline: {{enabled_steps: [local_import, wait, send]}}
jobs_dir: jobs
"""
        write(site.configuration / "nightly.yaml", text, 0o644)
        yield ContainerHospital(service.url, between)


def test_the_image_is_small_unprivileged_and_without_secret_compiler_or_second_ui(site: ContainerSite) -> None:
    write(site.configuration / "study.yaml", "canary-configuration", 0o644)
    built = site.compose("build", seconds=900)
    assert built.code == 0, built.err[-3000:]
    (image,) = json.loads(site.engine("image", "inspect", site.image))
    assert image["Config"]["User"] == "10001:10001"
    assert image["Size"] < 600_000_000
    assert image["Config"].get("Volumes") in (None, {})
    look = (
        "id -u; find / -xdev -user 10001; find / -xdev -type f "
        r"\( -name .env -o -name '*.env' -o -name pip.conf -o -name study.yaml -o -name site.yaml \) -print; "
        "ls -A /usr/local/lib/sluice/bin; ls /usr/local/lib/sluice/lib/*/site-packages/prefect/server; "
        "command -v gcc cc make git; ls /src /run/secrets; cat /usr/local/share/sluice/*.yaml > /dev/null"
    )
    ran = site.run([site.words[0], "run", "--rm", "--network", "none", site.image, "sh", "-c", look])
    lines = ran.out.splitlines()
    assert sorted(lines[:3]) == ["/var/lib/prefect", "/var/lib/sluice", "10001"]
    assert not [line for line in lines if re.search(r"\.env$|pip|study|site\.yaml|gcc|/cc$|make|git$", line)]
    assert "ui" in lines
    assert "ui-v2" not in lines
    assert ran.code == 0, ran.err
    history = site.engine("history", "--no-trunc", "--format", "{{.CreatedBy}}", site.image)
    environment = "\n".join(image["Config"]["Env"])
    for secret in (site.login, site.database, LOADER_PASSWORD, "canary-configuration"):
        assert secret not in history + environment + built.out + built.err


@pytest.mark.parametrize(("missing", "name"), [("login", "SLUICE_API_AUTH"), ("database", "SLUICE_DB_PASSWORD")])
def test_without_a_secret_nothing_starts_and_the_error_names_it(site: ContainerSite, missing: str, name: str) -> None:
    site.secrets(**{missing: ""})
    ran = site.compose("up", "--detach")
    assert ran.code != 0
    assert f"required variable {name} is missing a value: set {name}" in ran.err
    site.secrets()
    assert site.containers() == []


def test_a_wrong_database_password_and_missing_deployments_make_up_fail(site: ContainerSite) -> None:
    site.up("--build")
    wait_until(site.healthy, 180)
    site.compose("down")

    site.secrets(database="canary-wrong-password")
    ran = site.compose("up", "--detach", seconds=300)
    assert ran.code != 0
    assert "dependency failed to start" in ran.err
    said = site.compose("logs", "server").out
    assert 'password authentication failed for user "prefect"' in said
    assert "canary-wrong-password" not in said + ran.err + ran.out

    site.secrets()
    with (site.clone / "deployments/.env").open("a") as file:
        file.write("SLUICE_DEPLOYMENTS=/etc/sluice/missing.yaml\n")
    ran = site.compose("up", "--detach", seconds=300)
    assert ran.code != 0
    assert 'service "deploy" didn\'t complete successfully' in ran.err
    assert "/etc/sluice/missing.yaml" in re.sub(r"\s+", " ", site.compose("logs", "--no-log-prefix", "deploy").out)


def test_jobs_run_wait_and_survive_the_death_the_stop_and_the_removal_of_containers(
    site: ContainerSite, hospital: ContainerHospital
) -> None:
    only_the_server_is_reached_on_loopback_by_who_has_the_login(site)
    assert site.compose("exec", "worker", "printenv", "LOADER_PASSWORD").out == f"{LOADER_PASSWORD}\n"

    first = json.loads(site.sluice("pipeline", "start", CONFIG, "--json").out)
    assert first["state"] == "waiting"
    continued = site.sluice("pipeline", "continue", CONFIG, first["id"], "--approve")
    assert continued.code == 0, continued.err
    assert site.state(CONFIG, first["id"]) == "completed"
    assert hospital.entries() == TRANSACTIONS
    assert sum(hospital.holds().values()) == RESOURCES

    site.up("--scale", "worker=2")
    wait_until(lambda: len(site.workers()) == 2, 60)
    second = from_the_form(site)
    site.reaches(CONFIG, second, "waiting")
    a_killed_worker_s_job_goes_on_at_the_other(site, hospital, second)
    assert hospital.entries() == 2 * TRANSACTIONS

    third = str(site.sluice("pipeline", "start", CONFIG, "--detach").job)
    site.reaches(CONFIG, third, "waiting")
    a_stopped_worker_s_job_is_stopped_and_goes_on(site, hospital, third)
    assert hospital.entries() == 3 * TRANSACTIONS, "something was sent twice"
    assert sum(hospital.holds().values()) == RESOURCES

    assert site.compose("down").code == 0
    site.up()
    wait_until(site.healthy, 180)
    listed = json.loads(site.sluice("job", "list", CONFIG, "--json").out)
    assert {job["id"]: job["state"] for job in listed} == dict.fromkeys((third, second, first["id"]), "completed")
    (shown,) = site.page("docker compose --file deployments/compose.yaml exec")
    assert shown.code == 0, shown.err
    assert all(job["id"] in shown.out for job in listed)
    everything_is_private_and_quiet(site, [first["id"], second, third])


def only_the_server_is_reached_on_loopback_by_who_has_the_login(site: ContainerSite) -> None:
    published = [
        (one["Service"], port["URL"], port["PublishedPort"])
        for one in site.containers()
        for port in one["Publishers"] or []
        if port["PublishedPort"]
    ]
    assert published == [("server", "127.0.0.1", site.port)]
    for login in ("", "sluice:wrong"):
        assert site.call_prefect("POST", "/api/deployments/filter", {}, login=login).status_code == 401
    deployed = site.call_prefect("POST", "/api/deployments/filter", {}).json()
    assert sorted(one["name"] for one in deployed) == ["nightly", "sluice"]
    page = site.call_prefect("GET", "/", login="")
    assert page.status_code == 200
    assert "<script" in page.text, "the pages are served though the root is read-only"
    settings = site.call_prefect("GET", "/ui-settings", login="").json()
    assert (settings["available_uis"], settings["auth"]) == (["v1"], "BASIC")


def from_the_form(site: ContainerSite) -> str:
    """Start a run as the form in the UI does; its id."""
    deployment = site.call_prefect("GET", "/api/deployments/name/pipeline/sluice").json()["id"]
    body = {"parameters": {"config": CONFIG}, "state": {"type": "SCHEDULED"}}
    answer = site.call_prefect("POST", f"/api/deployments/{deployment}/create_flow_run", body)
    assert answer.status_code == 201, answer.status_code
    return str(answer.json()["id"])


def holder(site: ContainerSite) -> str:
    """Return the container in which the one run is."""
    found = [name for name in site.workers() if "prefect.engine" in site.engine("top", name)]
    assert len(found) == 1, found
    return found[0]


def sends_until_held(site: ContainerSite, hospital: ContainerHospital, job: str) -> None:
    """Approve a waiting job until its send is surely in its middle."""
    before = hospital.between.held
    hospital.between.hold("POST", after=5)
    ran = site.sluice("pipeline", "continue", CONFIG, job, "--approve")
    assert ran.code == 0, ran.err
    assert "a worker of its deployment continues it" in ran.out
    wait_until(lambda: hospital.between.held > before, 120)


def completes(site: ContainerSite, hospital: ContainerHospital, job: str) -> None:
    """``pipeline continue`` once more, and the end; what was complete did not begin again."""
    hospital.between.release()
    ran = site.sluice("pipeline", "continue", CONFIG, job)
    assert ran.code == 0, ran.err
    site.reaches(CONFIG, job, "completed")
    log = site.job_log(job)
    assert log.count("step 1 local_import begins") == 1
    assert log.count("step 3 send begins") == 2
    assert log.count("step 3 send is complete") == 1


def a_killed_worker_s_job_goes_on_at_the_other(site: ContainerSite, hospital: ContainerHospital, job: str) -> None:
    sends_until_held(site, hospital, job)
    dead = holder(site)
    site.engine("kill", "--signal", "KILL", dead)
    wait_until(lambda: dead not in site.workers(), 30)
    (living,) = site.workers()
    assert site.state(CONFIG, job) == "interrupted"
    completes(site, hospital, job)
    assert site.workers() == [living]


def a_stopped_worker_s_job_is_stopped_and_goes_on(site: ContainerSite, hospital: ContainerHospital, job: str) -> None:
    sends_until_held(site, hospital, job)
    worker = holder(site)
    stopped = site.compose("stop")
    assert stopped.code == 0, stopped.err
    codes = {one["Name"]: (one["Service"], one["ExitCode"]) for one in site.containers()}
    assert codes[worker] == ("worker", 0), "it was killed: its grace period is too short"
    assert ("database", 0) in codes.values()
    assert site.compose("start").code == 0
    wait_until(site.healthy, 180)
    assert site.state(CONFIG, job) == "stopped"
    completes(site, hospital, job)


def everything_is_private_and_quiet(site: ContainerSite, jobs: list[str]) -> None:
    """Modes of the volume, nothing that could not be written, and no canary in any log or record."""
    modes = site.compose("exec", "worker", "find", "/var/lib/sluice", "-printf", "%u %y%m\n").out.split("\n")
    assert set(filter(None, modes)) == {"sluice d700", "sluice f600"}
    logs = site.compose("logs", "--no-log-prefix").out
    logs += "".join(site.job_log(job) for job in jobs)
    assert not re.search(r"read-only file|errno 30|permission denied|traceback", logs, re.IGNORECASE)
    for path in ("flow_runs", "logs", "artifacts"):
        logs += site.call_prefect("POST", f"/api/{path}/filter", {"limit": 200}).text
    found = [secret for secret in (*CANARIES, LOADER_PASSWORD, site.login, site.database) if secret in logs]
    assert found == []
