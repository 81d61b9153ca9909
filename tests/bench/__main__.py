"""Run a bench: ``python -m tests.bench NAME [options]``. Without a name, list the benches; ``all`` runs each in turn.

A bench is a module ``bench_NAME.py`` with ``add_options`` and ``main``, which measures, and prints each figure beside
its limit of performance.md. Only that module is imported, so that its memory and its time are its own. Nothing here
fails for being slow. The load of the machine comes last: measure on a quiet one.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path

BENCHES = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main() -> int:
    """Run the bench that the command line names. Return the exit code."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name == "all":
        return max(subprocess.run([sys.executable, "-m", "tests.bench", one]).returncode for one in BENCHES)
    if name not in BENCHES:
        sys.stderr.write(f"{__doc__}\nBenches: {', '.join(BENCHES)}\n")
        return 0 if name in {"-h", "--help"} else 2
    bench = importlib.import_module(f"tests.bench.bench_{name}")
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.bench {name}", description=bench.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    bench.add_options(parser)
    code: int | None = bench.main(parser.parse_args(rest))
    print(f"load of the machine  {os.getloadavg()[0]:6.1f} in the last minute, on {os.cpu_count()} cores")
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
