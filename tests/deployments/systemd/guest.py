"""A machine of its own for the units: Debian with systemd as its first process, in a container of systemd-nspawn.

``SLUICE_REAL_GUEST`` names the root file system of that Debian (docs/development.md says how it is made); every guest
is a copy of it. It has a network of its own, with loopback alone: only ``prepare``, which installs, reaches more.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deployments.worker import children
from tests.conftest import ROOT, Ran, wait_until
from tests.real.programs import directory, program, running, scratch

VARIABLE = "SLUICE_REAL_GUEST"
HOW = "docs/development.md says how it is made"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CLONE = "/usr/local/src/sluice"
_PROJECT = ("README.md", "LICENSE", "pyproject.toml", "constraints.txt", "config", "tasks", "flows", "deployments")

# Filters on addresses are programs that systemd gives to the kernel: without these no IPAddressDeny= holds in a guest.
_FILTERS = ("--capability=CAP_BPF,CAP_NET_ADMIN,CAP_PERFMON", "--system-call-filter=bpf")


class Guest:
    """One machine. ``run`` is what root types there; ``power_on`` and ``power_off`` are its switch."""

    def __init__(self, root: Path, nspawn: Path) -> None:
        self.root = root
        self._boots = 0
        self._nspawn: list[str | Path] = [
            nspawn, "--quiet", f"--directory={root}", f"--machine=sluice-{os.getpid()}", "--register=no",
            "--link-journal=no",
        ]  # fmt: skip
        if not Path("/run/systemd/system").exists():
            self._nspawn.append("--keep-unit")  # nobody here who could make a unit for it
        self._running: Any = None
        self._leader = 0

    def prepare(self, script: str, *, timeout: float) -> str:
        """Run a script in the machine while it is off, with the network and the pip settings of this one."""
        options: list[str] = ["--pipe", "--resolv-conf=copy-host", f"--chdir={CLONE}"]
        for name, value in os.environ.items():
            if name.startswith("PIP_"):
                options.append(f"--setenv={name}={value}")
                if value.startswith("/") and Path(value).exists():
                    options.append(f"--bind-ro={value}")
        for settings in (Path.home() / ".config/pip/pip.conf", Path("/etc/pip.conf")):
            if settings.exists():
                options.append(f"--bind-ro={settings}:/etc/pip.conf")
                break
        if (certificates := Path("/etc/ssl/certs/ca-certificates.crt")).exists():
            options.append(f"--bind-ro={certificates}")
        done = subprocess.run(
            [*self._nspawn, *options, "/bin/sh", "-euc", script],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def power_on(self) -> None:
        """Boot, and wait until everything that starts by itself has started."""
        self._boots += 1
        log = self.root.parent / f"console-{self._boots}.log"
        self._running = running(
            "systemd-nspawn", [*self._nspawn, "--private-network", *_FILTERS, "--boot"], log,
            environ={"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        )  # fmt: skip
        self._process = self._running.__enter__().process
        wait_until(self._first_process, 60)
        wait_until(lambda: self.ran("systemctl is-system-running").out.strip() in ("running", "degraded"), 300)

    def _first_process(self) -> bool:
        for child in children(self._process.pid):
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                self._leader = child
                return True
        return False

    def power_off(self) -> None:
        """Shut down in order, as for a reboot."""
        self.ran("systemctl poweroff")
        self._process.wait(120)
        self._end()

    def _end(self) -> None:
        if self._running is not None:
            self._running.__exit__(None, None, None)
            self._running = None

    def ran(self, script: str, *, timeout: float = 120) -> Ran:
        """Let root run a script in the machine that is on."""
        done = subprocess.run(
            ["nsenter", f"--target={self._leader}", "--all", "--", "/usr/bin/env", "-i", f"PATH={PATH}", "LANG=C.UTF-8",
             "/bin/bash", "-uo", "pipefail", "-c", script],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    def run(self, script: str, *, timeout: float = 120) -> str:
        """Run a command that must succeed; return its output."""
        ran = self.ran(f"set -e\n{script}", timeout=timeout)
        assert ran.code == 0, f"{script}\n{ran.out}\n{ran.err}"
        return ran.out

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """A file of root's in the machine."""
        inside = self.root / path.lstrip("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.touch(mode=mode)
        inside.write_text(text, encoding="utf-8")
        inside.chmod(mode)

    def http(self, method: str, url: str, body: Any = None) -> tuple[int, str]:
        """Ask a server in the machine; its status and answer."""
        words = shlex.join(["python3", "-c", _ASK, method, url, json.dumps(body)])
        status, answer = json.loads(self.run(words))
        return status, answer

    def unit(self, name: str, key: str) -> str:
        """Return a property of a unit, as ``systemctl show`` prints it."""
        return self.run(f"systemctl show --property={key} --value {name}").strip()

    def journal(self, *units: str) -> str:
        """Everything the journal has of these units, or of the whole machine."""
        return self.run("journalctl --no-pager --output=cat " + " ".join(f"--unit={unit}" for unit in units))


_ASK = """
import json, sys, urllib.error, urllib.request
method, url, body = sys.argv[1:]
data = None if body == "null" else body.encode()
headers = {"Content-Type": "application/json", "Accept": "text/html, application/json"}
request = urllib.request.Request(url, data, headers, method=method)
try:
    with urllib.request.urlopen(request, timeout=30) as answer:
        print(json.dumps([answer.status, answer.read().decode()]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, error.read().decode()]))
"""


@contextmanager
def guest() -> Iterator[Guest]:
    """Yield a new machine, switched off, with the project's files in it as a clone has them."""
    base = directory(VARIABLE, "lib/systemd/systemd", HOW)
    nspawn = program("systemd-nspawn", "SLUICE_REAL_NSPAWN", "apt install systemd-container")
    if os.geteuid() != 0:
        pytest.skip("only root may start a guest")
    with scratch() as place:
        subprocess.run(["cp", "--archive", "--reflink=auto", base, place / "root"], check=True, timeout=300)
        machine = Guest(place / "root", nspawn)
        clone = machine.root / CLONE.lstrip("/")
        clone.mkdir(parents=True)
        for name in _PROJECT:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, clone / name)
        try:
            yield machine
        finally:
            machine._end()
