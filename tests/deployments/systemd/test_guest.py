"""The units of ``deployments/systemd`` under a real systemd, installed as docs/deployment.md says (4-product.md §6)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT, wait_until
from tests.deployments.systemd.site import CONFIGURATION, NAME, SECRET, SMALL, UNITS, SystemdSite, site

pytestmark = [pytest.mark.real, pytest.mark.campaign, pytest.mark.timeout(1800)]

PATIENTS = 180  # 60 transactions of half a second


@pytest.fixture(scope="module")
def built() -> Iterator[SystemdSite]:
    with site() as built:
        yield built


@pytest.fixture
def here(built: SystemdSite) -> SystemdSite:
    built.is_up()
    return built


def sending(here: SystemdSite, prefix: str) -> str:
    """Start a job and wait for the middle of its send; the FHIR server must be slow."""
    here.patients(prefix, PATIENTS)
    job = here.start(SMALL)
    wait_until(lambda: here.stored(prefix, PATIENTS) > 0, 120)
    return job


class TestInstalled:
    def test_both_units_run_and_nothing_of_the_machine_failed(self, here: SystemdSite) -> None:
        assert here.machine.run("systemctl is-system-running").strip() == "running"
        for unit in UNITS:
            assert here.machine.unit(unit, "ActiveState") == "active"
            assert here.machine.ran(f"systemctl is-enabled {unit}").out.strip() == "enabled"

    def test_the_server_shows_its_pages_and_answers_nobody_without_the_login(self, here: SystemdSite) -> None:
        status, page = here.machine.http("GET", "http://127.0.0.1:4200/dashboard")
        assert status == 200
        assert "<html" in page
        assert here.machine.http("POST", "http://127.0.0.1:4200/api/flow_runs/filter", {})[0] == 401

    def test_what_is_written_is_the_owner_s_alone(self, here: SystemdSite) -> None:
        for directory, user in (("/var/lib/sluice", "sluice"), ("/var/lib/sluice-server", "sluice-server")):
            assert here.machine.run(f"stat --format='%U %a' {directory}").split() == [user, "700"]
            others = f"find {directory} ! -user {user} -o -perm /077 ! -type l"
            assert here.machine.run(others) == ""

    def test_the_scores_are_those_of_the_page(self, here: SystemdSite) -> None:
        said = [
            re.findall(r"(\d\.\d) OK", here.machine.run(f"systemd-analyze security --no-pager {unit} | tail --lines=1"))
            for unit in UNITS
        ]
        page = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")
        assert f"`systemd-analyze security`: {said[0][0]} and {said[1][0]}" in page


class TestConfined:
    @pytest.fixture(params=UNITS)
    def unit(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def inside(self, here: SystemdSite, unit: str, script: str) -> int:
        """Run a script in a shell with the unit's user, files and capabilities, and return its exit code."""
        pid = here.machine.unit(unit, "MainPID")
        user = here.machine.unit(unit, "User")
        return here.machine.ran(
            f"nsenter --target={pid} --mount setpriv --reuid={user} --regid={user} --clear-groups "
            f"--bounding-set=-all --inh-caps=-all --no-new-privs sh -c '{script}'"
        ).code

    def test_it_writes_to_its_own_directory_only(self, here: SystemdSite, unit: str) -> None:
        own = "/var/lib/" + ("sluice-server" if unit == "sluice-server" else "sluice")
        assert self.inside(here, unit, f"touch {own}/probe && rm {own}/probe") == 0
        for place in ("/usr/local/lib/sluice", "/etc/sluice", "/var/lib", "/var/tmp/..", "/srv", "/dev/shm/.."):
            assert self.inside(here, unit, f"touch {place}/probe") != 0, place

    def test_it_sees_no_home_no_secrets_of_others_and_no_processes_of_others(
        self, here: SystemdSite, unit: str
    ) -> None:
        here.machine.run("mkdir --parents /home/somebody && touch /home/somebody/file /tmp/file && chmod 0777 /root")
        (other,) = set(UNITS) - {unit}
        pid = here.machine.unit(other, "MainPID")
        for seen in ("/home/somebody", "/root/.", "/tmp/file", f"/proc/{pid}", "/proc/1"):
            assert self.inside(here, unit, f"ls {seen}") != 0, seen
        for name in ("server", "worker"):
            assert self.inside(here, unit, f"cat /etc/sluice/{name}.env") != 0
        here.machine.run("chmod 0700 /root")

    def test_the_server_does_not_see_the_jobs_nor_the_worker_the_record(self, here: SystemdSite) -> None:
        assert self.inside(here, "sluice-server", "ls /var/lib/sluice") != 0
        assert self.inside(here, "sluice-worker", "ls /var/lib/sluice-server") != 0

    def test_its_process_has_a_filter_for_system_calls_and_no_capability(self, here: SystemdSite, unit: str) -> None:
        status = here.machine.run(f"cat /proc/{here.machine.unit(unit, 'MainPID')}/status")
        fields = dict(re.findall(r"^(\w+):\s+(.*)$", status, re.MULTILINE))
        assert fields["NoNewPrivs"] == "1"
        assert fields["Seccomp"] == "2"
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(fields[name], 16) == 0, name

    def test_the_server_reaches_this_machine_only(self, here: SystemdSite) -> None:
        here.machine.run("""
            ip address replace 10.99.0.1/32 dev lo
            systemctl reset-failed listener 2>/dev/null || true
            systemctl is-active --quiet listener || systemd-run --quiet --unit=listener --property=DynamicUser=yes \\
                python3 -m http.server --bind 0.0.0.0 9999
        """)
        ask = "import socket, sys; socket.create_connection((sys.argv[1], 9999), 5)"
        wait_until(lambda: here.machine.ran(f"python3 -c '{ask}' 10.99.0.1").code == 0)

        def reaches(unit: str, address: str) -> bool:
            group = f"/sys/fs/cgroup/system.slice/{unit}.service/cgroup.procs"
            return here.machine.ran(f"echo $BASHPID > {group} && exec python3 -c '{ask}' {address}").code == 0

        assert reaches("sluice-server", "127.0.0.1")
        assert not reaches("sluice-server", "10.99.0.1")
        assert reaches("sluice-worker", "10.99.0.1")


class TestJob:
    def test_every_step_runs_and_the_wait_is_approved(self, here: SystemdSite) -> None:
        job = here.start_as_the_page_does()
        here.reaches(CONFIGURATION, job, "waiting")
        assert here.sluice(f"pipeline continue {CONFIGURATION} {job} --approve --comment fine").code == 0
        here.reaches(CONFIGURATION, job, "completed", before=("waiting", "pending", "running"))
        steps = here.status(CONFIGURATION, job)["steps"]
        names = ["extractor", "validation", "pseudonymizer", "flattening", "wait", "send"]
        assert [(step["name"], step["state"]) for step in steps] == [(name, "completed") for name in names]

    def test_a_run_made_at_the_api_is_the_same_job(self, here: SystemdSite) -> None:
        here.patients("api", 9)
        made = here.machine.run(f"prefect deployment run pipeline/sluice --param config={SMALL} 2>&1")
        (job,) = re.findall(r"UUID: (\S+)", made)
        here.reaches(SMALL, job, "completed")
        assert job in here.sluice(f"job list {SMALL}").out
        assert here.stored("api", 9) == 9

    def test_a_schedule_starts_jobs(self, here: SystemdSite) -> None:
        here.patients("scheduled", 9)
        here.machine.run("prefect --no-prompt deploy --prefect-file /etc/sluice/minutely.yaml --all")
        try:
            wait_until(lambda: here.stored("scheduled", 9) == 9, 240)
        finally:
            here.machine.run("prefect deployment delete pipeline/minutely")

    def test_nothing_that_others_may_read_holds_a_secret_and_the_journal_no_name(self, here: SystemdSite) -> None:
        here.patients("quiet", 9)
        job = here.start(SMALL)
        here.reaches(SMALL, job, "completed")
        secrets = (SECRET, here.password, here.login.partition(":")[2])
        shown = here.machine.run("systemctl show --all " + " ".join(UNITS))
        arguments = here.machine.run("cat /proc/[0-9]*/cmdline 2>/dev/null || true").replace("\0", " ")
        journal = here.machine.journal()
        for secret in secrets:
            assert secret not in shown
            assert secret not in arguments
            assert secret not in journal
        assert NAME not in journal
        for unit in UNITS:
            for pid in here.processes(unit):
                assert here.machine.ran(f"runuser --user nobody -- cat /proc/{pid}/environ").code != 0

    def test_a_full_disk_fails_the_job_and_not_the_worker(self, here: SystemdSite) -> None:
        here.machine.run("""
            mkdir --parents /srv/small
            mount --types tmpfs --options size=140m,mode=0700,uid=sluice,gid=sluice small /srv/small
        """)
        here.machine.write(  # as the page says; it may stay for the other tests
            "/etc/systemd/system/sluice-worker.service.d/jobs.conf", "[Service]\nReadWritePaths=/srv/small\n"
        )
        here.machine.run("systemctl daemon-reload && systemctl restart sluice-worker")
        config = "/etc/sluice/small.yaml"
        here.load_configuration(config, source="/srv/large", jobs="/srv/small", batch=100)
        here.patients("large", 900, source="/srv/large", filling=400)
        here.machine.run("systemctl stop sluice-worker")
        job = here.start(config)  # there is room as yet
        here.machine.run(
            "dd if=/dev/zero of=/srv/small/filler bs=1k count=142600 status=none && systemctl start sluice-worker"
        )
        here.reaches(config, job, "failed")
        assert here.status(config, job)["error"]["reference"] in ("disk-space", "disk-full")
        assert here.machine.unit("sluice-worker", "ActiveState") == "active"
        here.machine.run("rm /srv/small/filler")
        here.go_on(config, job)
        here.reaches(config, job, "completed", before=("failed", "pending", "running"))


class TestStopped:
    def test_a_worker_that_is_stopped_stops_its_jobs_and_they_go_on_later(self, here: SystemdSite) -> None:
        with here.slow_server():
            job = sending(here, "stop")
            pids = here.processes("sluice-worker")
            here.machine.run("systemctl stop sluice-worker")
        assert here.alive(pids) == set()
        assert here.machine.unit("sluice-worker", "Result") == "success"  # in time: else it is "timeout"
        assert here.status(SMALL, job)["state"] == "stopped"
        assert 0 < here.stored("stop", PATIENTS) < PATIENTS
        here.go_on(SMALL, job)
        here.is_up()
        here.reaches(SMALL, job, "completed")
        assert here.stored("stop", PATIENTS) == PATIENTS

    def test_the_runs_of_a_worker_that_is_killed_die_with_it_and_go_on_at_the_next(self, here: SystemdSite) -> None:
        with here.slow_server():
            job = sending(here, "kill")
            pids = here.processes("sluice-worker")
            here.machine.run(f"kill -KILL {here.machine.unit('sluice-worker', 'MainPID')}")
            wait_until(lambda: not here.alive(pids), 20)
            assert here.status(SMALL, job)["state"] == "interrupted"
            before = here.stored("kill", PATIENTS)
            wait_until(lambda: here.machine.unit("sluice-worker", "ActiveState") == "active", 60)
            assert here.stored("kill", PATIENTS) == before  # nobody goes on without being told
        here.go_on(SMALL, job)
        here.reaches(SMALL, job, "completed")
        assert here.stored("kill", PATIENTS) == PATIENTS

    def test_jobs_go_on_while_a_server_that_was_killed_comes_back(self, here: SystemdSite) -> None:
        with here.slow_server():
            job = sending(here, "server")
            here.machine.run(f"kill -KILL {here.machine.unit('sluice-server', 'MainPID')}")
            wait_until(lambda: here.machine.unit("sluice-server", "ActiveState") == "active", 120)
        here.reaches(SMALL, job, "completed")
        assert here.stored("server", PATIENTS) == PATIENTS

    def test_a_server_waits_for_its_database(self, here: SystemdSite) -> None:
        try:
            here.machine.run("systemctl stop sluice-worker sluice-server postgresql@15-main")
            here.machine.run("systemctl start --no-block sluice-server")
            wait_until(lambda: int(here.machine.unit("sluice-server", "NRestarts")) >= 2, 180)
        finally:
            here.machine.run("systemctl start postgresql@15-main")
        wait_until(lambda: here.machine.unit("sluice-server", "ActiveState") == "active", 120)

    def test_after_a_reboot_everything_is_back_in_order(self, here: SystemdSite) -> None:
        waiting = here.start(CONFIGURATION, "/etc/sluice/nightly.crtdl")
        here.reaches(CONFIGURATION, waiting, "waiting")
        schedule = "sed 's/active: false/active: true/' /etc/sluice/prefect.yaml > /etc/sluice/active.yaml"
        here.machine.run(
            f"{schedule}; prefect --no-prompt deploy --prefect-file /etc/sluice/active.yaml --name nightly"
        )
        with here.slow_server():
            job = sending(here, "reboot")
            here.machine.power_off()
            here.machine.power_on()
        began = {
            unit: int(here.machine.unit(unit, "ActiveEnterTimestampMonotonic"))
            for unit in ("postgresql@15-main", *UNITS)
        }
        assert sorted(began, key=lambda unit: began[unit]) == ["postgresql@15-main", *UNITS]
        assert [here.machine.unit(unit, "NRestarts") for unit in UNITS] == ["0", "0"]
        assert here.status(CONFIGURATION, waiting)["state"] == "waiting"
        assert here.status(SMALL, job)["state"] == "stopped"
        assert "True" in here.machine.run("prefect deployment schedule ls pipeline/nightly")
        here.go_on(SMALL, job)
        here.reaches(SMALL, job, "completed")
        assert here.stored("reboot", PATIENTS) == PATIENTS


def test_the_journal_of_a_quiet_start_has_no_warning(here: SystemdSite) -> None:
    here.machine.run("systemctl stop sluice-worker && systemctl restart sluice-server && systemctl start sluice-worker")
    wait_until(lambda: "started!" in _since_start(here), 60)
    assert not re.findall(r"WARNING|ERROR|Traceback", _since_start(here))


def _since_start(here: SystemdSite) -> str:
    identifiers = [here.machine.unit(unit, "InvocationID") for unit in UNITS]
    return "".join(
        here.machine.run(f"journalctl --no-pager --output=cat _SYSTEMD_INVOCATION_ID={one}") for one in identifiers
    )
