"""The files of ``deployments/systemd``, as far as they can be read (4-product.md §6); ``test_guest`` starts them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest

from flows.engine.server.start import QUIET, SERVER
from flows.job.running.proof import LeaseTimes
from tests.conftest import ROOT
from tests.docs.pages import example

SYSTEMD = ROOT / "deployments/systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
COMMAND = SYSTEMD / "sluice"
SECRET = re.compile(r"PASSWORD|AUTH|SECRET|KEY|TOKEN")
OPERATED = {key: value for key, value in SERVER.items() if key != "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"}


ANALYZED = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
IMPLIED = 0.2
"""What a private mount namespace takes off the score of a unit that runs."""


class SystemdUnit(RawConfigParser):
    """A systemd unit; settings given more than once are lists."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, delimiters=("=",), comment_prefixes=("#",))
        self.text = path.read_text(encoding="utf-8")
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.read_string(self.text)

    def environment(self) -> dict[str, str]:
        return dict(re.findall(r"^Environment=(\w+)=(.*)$", self.text, re.MULTILINE))


SERVER_UNIT = SystemdUnit(SYSTEMD / "sluice-server.service")
WORKER_UNIT = SystemdUnit(SYSTEMD / "sluice-worker.service")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
class TestUnit:
    def test_it_is_hardened(self, path: Path) -> None:
        service = SystemdUnit(path)["Service"]
        for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "RestrictNamespaces"):
            assert service[name] == "yes"
        assert service["ProtectSystem"] == "strict"
        assert service["CapabilityBoundingSet"] == ""
        assert service["UMask"] == "0077"
        assert service["StateDirectoryMode"] == "0700"

    def test_it_has_a_user_and_a_directory_of_its_own(self, path: Path) -> None:
        """The server must not see the jobs, nor the secrets of the services in the worker's environment."""
        service = SystemdUnit(path)["Service"]
        assert service["User"] == service["Group"] == service["StateDirectory"]
        assert len({SystemdUnit(unit)["Service"]["User"] for unit in UNITS}) == len(UNITS)
        assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"

    def test_a_run_has_time_to_end_cleanly_and_is_told_by_sigterm(self, path: Path) -> None:
        service = SystemdUnit(path)["Service"]
        assert service["KillSignal"] == "SIGTERM"
        assert int(service["TimeoutStopSec"]) >= 15
        # Prefect's worker kills its runs when it gets the signal: deployments.worker gets it alone, and tells them.
        assert service.get("KillMode") == ("mixed" if "deployments.worker" in service["ExecStart"] else None)

    def test_it_comes_back_however_long_what_it_needs_is_away(self, path: Path) -> None:
        unit = SystemdUnit(path)
        assert unit["Service"]["Restart"] == "on-failure"
        assert unit["Unit"]["StartLimitIntervalSec"] == "0"

    def test_secrets_come_from_a_file(self, path: Path) -> None:
        unit = SystemdUnit(path)
        assert unit["Service"]["EnvironmentFile"].startswith("/etc/sluice/")
        assert not any(SECRET.search(name) for name in unit.environment())

    def test_no_telemetry(self, path: Path) -> None:
        unit = SystemdUnit(path)
        wanted = OPERATED if "server" in path.stem else dict.fromkeys(QUIET)
        for name in set(wanted) - {"PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT"}:
            assert unit.environment()[name] == SERVER[name]

    @ANALYZED
    def test_systemd_finds_it_as_confined_as_the_page_says(self, path: Path) -> None:
        """From the file alone: a mount namespace of its own, which other settings imply, counts when it runs only."""
        page = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")
        (server, worker) = re.findall(r"`systemd-analyze security`: (\S+) and (\S+)\)", page)[0]
        said = float(server if "server" in path.stem else worker)
        ran = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        if "unrecognized option" in ran.stderr:
            pytest.skip("this systemd judges running units only")
        (score,) = re.findall(rf"{path.name}: (\S+) OK", ran.stdout)
        assert said <= float(score) <= said + IMPLIED + 1e-9

    @ANALYZED
    def test_systemd_finds_no_fault_in_it(self, path: Path, tmp_path: Path) -> None:
        copy = tmp_path / path.name
        copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", path.read_text(), flags=re.MULTILINE))
        ran = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60
        )
        about_it = [line for line in ran.stderr.splitlines() if path.name in line]
        assert not about_it, ran.stderr

    def test_the_page_installs_it(self, path: Path) -> None:
        assert f"deployments/systemd/{path.name}" in example("docs/deployment.md", "useradd --system").text
        assert f"systemctl enable --now {path.stem}\n" in example("docs/deployment.md", "systemctl daemon-reload").text


def test_the_server_unit_listens_on_loopback_and_reaches_nothing_else() -> None:
    service = SERVER_UNIT["Service"]
    assert "--host 127.0.0.1" in service["ExecStart"]
    assert (service["IPAddressDeny"], service["IPAddressAllow"]) == ("any", "localhost")


def test_the_server_copies_its_pages_to_where_it_may_write() -> None:
    """Prefect copies them beside its own code otherwise, which is read-only: the server would have no pages."""
    place = SERVER_UNIT.environment()["PREFECT_SERVER_UI_STATIC_DIRECTORY"]
    assert place == f"/var/cache/{SERVER_UNIT['Service']['CacheDirectory']}"


def test_the_worker_starts_when_the_server_answers() -> None:
    assert "sluice-server.service" in WORKER_UNIT["Unit"]["After"].split()
    assert "/dev/tcp/127.0.0.1/4200" in SERVER_UNIT["Service"]["ExecStartPost"]


def test_a_server_that_was_killed_is_back_before_jobs_give_up() -> None:
    begins, takes = int(SERVER_UNIT["Service"]["RestartSec"]), 15
    assert begins + takes < LeaseTimes().give_up


def test_commands_run_as_the_worker_does() -> None:
    words = shlex.split(COMMAND.read_text(encoding="utf-8").replace("\\\n", " "), comments=True)
    service = WORKER_UNIT["Service"]
    assert {f"--uid={service['User']}", f"--gid={service['Group']}"} <= set(words)
    assert f"--working-directory={service['WorkingDirectory']}" in words
    for name in ("EnvironmentFile", "StateDirectory", "StateDirectoryMode", "UMask", "ProtectProc"):
        assert f"--property={name}={service[name]}" in words
    for name in ("PREFECT_HOME", "PREFECT_SERVER_EPHEMERAL_ENABLED", "DO_NOT_TRACK"):
        assert f"--setenv={name}={WORKER_UNIT.environment()[name]}" in words
    assert subprocess.run(["sh", "-n", COMMAND], check=False).returncode == 0
