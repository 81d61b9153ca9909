"""The send step in a process of its own, to be killed with ``kill -9``: ``python -m tests.real.victim``."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tasks.send.step import run
from tests.conftest import ROOT
from tests.real.job import job


def killed_while_sending(directory: Path, services: dict[str, Any], *, times: int, seconds: float) -> int:
    """Begin the send step of a job ``times`` times, and kill it after at most so many ``seconds`` of its work.

    Returns how many of the processes were killed before they had ended by themselves.
    """
    draw = random.Random(directory.name)
    command = [sys.executable, "-m", __name__, str(directory), json.dumps(services)]
    killed = 0
    for _ in range(times):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})
        assert process.stdout is not None
        assert process.stdout.readline() == b"begins\n"
        time.sleep(draw.uniform(0, seconds))
        process.kill()
        killed += process.wait() == -9
        process.stdout.close()
    return killed


if __name__ == "__main__":
    context = job(Path(sys.argv[1]), json.loads(sys.argv[2]))
    print("begins", flush=True)
    run(context)
