"""How long commands take: ``python -m tests.bench.bench_commands``. Prints each figure beside its target.

Targets of the performance page: ``--help`` and ``config check`` 0.4 s; a run's fixed cost 6 s cold and 3 s with a
running server; ``status`` 1.5 s with one. The limit is the start of the interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def timed(*command: str, cwd: Path, runs: int = 3) -> tuple[float, str]:
    """The best of ``runs`` in seconds, and what the last one printed."""
    best, out = float("inf"), ""
    for _ in range(runs):
        began = time.monotonic()
        ran = subprocess.run(
            command, cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
        )
        best, out = min(best, time.monotonic() - began), ran.stdout
    return best, out


def main() -> None:
    """Print the table."""
    sluice = (sys.executable, "-m", "flows.run")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / "data").mkdir()
        (place / "data" / "a.ndjson").write_text('{"resourceType":"Patient","id":"a"}\n')
        (place / "c.yaml").write_text(
            "services: {local_import: {dir: data}}\npipeline: {enabled_steps: [local_import, wait]}\n"
        )
        rows = [("interpreter start (limit)", timed(sys.executable, "-c", "pass", cwd=place)[0], None)]
        rows.append(("--help", timed(*sluice, "--help", cwd=place)[0], 0.4))
        rows.append(("config check", timed(*sluice, "config", "check", "c.yaml", cwd=place)[0], 0.4))
        start = (*sluice, "pipeline", "start", "c.yaml")
        rows.append(("run, first ever (fresh database)", timed(*start, cwd=place, runs=1)[0], None))
        rows.append(("run, cold", timed(*start, cwd=place)[0], 6.0))
        subprocess.run([*sluice, "server", "start", "--port", "0"], cwd=place, check=True, capture_output=True,
                       env=os.environ | {"PYTHONPATH": str(ROOT)})  # fmt: skip
        try:
            seconds, out = timed(*start, cwd=place)
            rows.append(("run, server runs", seconds, 3.0))
            job = out.split()[1]
            rows.append(("status, server runs", timed(*sluice, "pipeline", "status", "c.yaml", job, cwd=place)[0], 1.5))
        finally:
            timed(*sluice, "server", "stop", cwd=place, runs=1)
    for name, seconds, target in rows:
        print(f"{name:36} {seconds:6.2f} s" + (f"   target {target:.1f} s" if target else ""))


if __name__ == "__main__":
    main()
