"""A directory where examples are done as a reader does them: with a shell where a line needs one, real services."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import ROOT, Commands, Ran, wait_until

SUBSTITUTES = (
    # What a page writes (a regular expression), and what is put in its place: a {name} is what the place knows.
    (r"http://127\.0\.0\.1:8090", "{sandbox}"),
    (r"--port 8090", "--port {port}"),
    (r"(?<!/)\.venv/bin/(?!activate)", ""),
)

PROGRAMS = {"prefect": "-m prefect", "python": ""}
"""What the shell of the place finds under these names, whatever this machine's PATH says; and ``sluice``."""

SCRIPT = f"#!{sys.executable}\nimport sys\nfrom flows.run import main\nsys.exit(main())\n"
"""As pip writes it."""


OWN = {".bin/", ".temporary/", ".gitignore", "deployments"}
"""What a place has that a clone does not have, or has from git."""


def untracked(clone: Path) -> list[str]:
    """Return what ``git status`` would list of a directory if it were a clone of the project."""
    shutil.copy(ROOT / ".gitignore", clone)
    for words in (("init", "-q"), ("-c", "core.excludesFile=", "status", "--porcelain")):
        ran = subprocess.run(["git", *words], cwd=clone, capture_output=True, text=True, check=True, timeout=60)
    listed = [line[3:] for line in ran.stdout.splitlines()]
    return [name for name in listed if name not in OWN and not name.startswith(".log-")]


class ExamplePlace:
    """An empty directory, a shell in it, and the addresses that stand on a page."""

    def __init__(self, directory: Path, api: str | None, **known: str) -> None:
        self.directory = directory
        self.known = known
        binaries = directory / ".bin"
        binaries.mkdir()
        texts = {name: f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n' for name, words in PROGRAMS.items()}
        for name, text in (texts | {"sluice": SCRIPT}).items():
            (binaries / name).write_text(text)
            (binaries / name).chmod(0o755)
        temporary = directory / ".temporary"
        temporary.mkdir()
        self.environment = Commands(directory, api).environment | {
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "TMPDIR": str(temporary),
            "PYTHONUNBUFFERED": "1",
        }

    def here(self, text: str) -> str:
        """Return a page's text with the addresses that are meant."""
        for written, meant in SUBSTITUTES:
            text = re.sub(written, lambda _, meant=meant: meant.format_map(self.known), text)  # type: ignore[misc]
        return text

    def ran(self, text: str, *, timeout: float = 120) -> Ran:
        """Give a page's text to the shell as one script.

        A job that it starts is the place's ``JOB`` from then on.
        """
        done = subprocess.run(
            ["bash", "-c", self.here(text)], cwd=self.directory, env=self.environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
        ran = Ran(done.returncode, done.stdout, done.stderr)
        if match := re.search(r"^job (\S+)$", ran.out + ran.err, re.MULTILINE):
            self.known["job"] = match[1]
        return ran

    def run(self, text: str, *, timeout: float = 120) -> str:
        """Run a command that must succeed; return its output."""
        ran = self.ran(text, timeout=timeout)
        assert ran.code == 0, f"{text}\n{ran.out}\n{ran.err}"
        return ran.out

    @contextmanager
    def running(self, line: str, until: str) -> Iterator[Path]:
        """Run a command until Ctrl-C, which must end it with success. Yield its log once that contains ``until``."""
        log = self.directory / f".log-{len(list(self.directory.glob('.log-*')))}"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {self.here(line)}"], cwd=self.directory, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
            try:
                wait_until(lambda: until in log.read_text() or process.poll() is not None, 150)
                assert process.poll() is None, log.read_text()
                yield log
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0, log.read_text()
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def on_a_terminal(self, line: str, *answers: tuple[str, str]) -> str:
        """Run a command on a terminal, which must succeed, and answer its questions in their order: what the last
        words of each are, and what is typed then. What the terminal showed, without escape sequences.
        """
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["bash", "-c", f"exec {self.here(line)}"], cwd=self.directory, env=self.environment | {"TERM": "xterm"},
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        shown, read, open_, deadline = "", 0, list(answers), time.monotonic() + 200
        try:
            while time.monotonic() < deadline:
                if not select.select([ours], [], [], 0.2)[0]:
                    continue
                try:
                    data = os.read(ours, 65536)
                except OSError:  # the terminal is closed: the command has ended
                    break
                if not data:
                    break
                shown += data.decode(errors="replace")
                if open_ and open_[0][0] in shown[read:]:
                    read = len(shown)
                    os.write(ours, f"{open_.pop(0)[1]}\n".encode())
            assert process.wait(30) == 0, shown
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(ours)
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r\n", "\n")
        return text.removeprefix("loading Sluice\n")  # only on a slow machine
