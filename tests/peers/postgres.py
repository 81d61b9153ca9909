"""A PostgreSQL of its own, on a socket alone."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


class Postgres:
    """A server in a new directory ``place``, which its user must be able to reach; it runs between start and stop.

    It is the machine's, or the one unpacked in ``program``, which has no ``pg_dump`` and no ``pg_restore``.
    """

    def __init__(self, place: Path, program: Path | None = None) -> None:
        self.place = place
        place.mkdir(mode=0o755, exist_ok=True)
        self._binaries = program / "bin" if program else Path(str(shutil.which("initdb"))).resolve().parent
        self._as: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to work as root
            user = "postgres" if any(one.pw_name == "postgres" for one in pwd.getpwall()) else "nobody"
            self._as = ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups"]
            shutil.chown(place, user)
            if program:  # it may lie in a home that the user may not look into
                shutil.copytree(program, place / "program", symlinks=True)
                self._binaries = place / "program" / "bin"
        self.run("initdb", "-D", f"{place}/data", "-A", "trust", "-U", "prefect")

    def run(self, program: str, *words: str) -> None:
        """Run one of its programs without pipes, since a server keeps the pipes that it inherits."""
        subprocess.run(
            [*self._as, f"{self._binaries}/{program}", *words], check=True, timeout=120, cwd=self.place,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def start(self) -> None:
        options = f"-c listen_addresses='' -k {self.place}"
        self.run("pg_ctl", "-D", f"{self.place}/data", "-w", "-l", f"{self.place}/log", "-o", options, "start")

    def stop(self, how: str = "immediate") -> None:
        """``immediate`` is what a crash is to it."""
        self.run("pg_ctl", "-D", f"{self.place}/data", "-w", "-m", how, "stop")

    def end(self) -> None:
        """Stop it if it runs."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.stop()

    def dump(self) -> None:
        self.run(
            "pg_dump", "-h", str(self.place), "-U", "prefect", "--format=custom", "-f", f"{self.place}/dump", "postgres"
        )

    def restore(self) -> None:
        self.run(
            "pg_restore", "-h", str(self.place), "-U", "prefect", "--clean", "--if-exists", "-d", "postgres",
            f"{self.place}/dump",
        )  # fmt: skip

    @property
    def url(self) -> str:
        """For Prefect."""
        return f"postgresql+asyncpg://prefect@/postgres?host={self.place}"


@contextlib.contextmanager
def postgres_running(program: Path | None = None) -> Iterator[Postgres]:
    """Yield a server in a directory that is deleted with it."""
    with tempfile.TemporaryDirectory(prefix="sluice-pg-") as place:
        made = Postgres(Path(place), program)
        made.start()
        try:
            yield made
        finally:
            made.end()
