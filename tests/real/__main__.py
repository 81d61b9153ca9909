"""Runs the tests against all programs of other people that are there, one after the other.

    python -m tests.real                 all that is there; what is not is named, with the command that gets it
    python -m tests.real minio hapi      the tests of these
    python -m tests.real --record        keep what was found for the page "Tried with"

What ``get.py`` has fetched is found by itself; a variable that is set wins. The exit code is pytest's.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.real import get
from tests.real.components import COMPONENTS, COMPONENTS_OF, DIFFERS, FIGURE, NAMES, about, components_of
from tests.real.tried import Figure, Tried, save

HERE = Path(__file__).parent


class RunRecorder:
    """A plugin of pytest that keeps the tests of some components, with ``others`` those of none, too, and what became
    of them."""

    def __init__(self, versions: dict[str, str], *, others: bool) -> None:
        self._others = others
        today = datetime.now(UTC).date().isoformat()
        self.tried = {name: Tried(version, today) for name, version in versions.items()}
        self._about: dict[str, str] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        used = {item: components_of(item) for item in items}
        kept = [item for item in items if used[item] & self.tried.keys() or (self._others and not used[item])]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
        self._about = {item.nodeid: about(item) for item in kept}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = list(report.user_properties)
        used = next((value for key, value in properties if key == COMPONENTS_OF), "")
        for name in str(used).split():
            if name in self.tried:
                self._note(self.tried[name], name, report, properties)

    def _note(self, one: Tried, name: str, report: pytest.TestReport, properties: list[tuple[str, Any]]) -> None:
        one.seconds += report.duration
        test = report.nodeid.partition("::")[2]
        if report.failed and test not in one.failed:
            one.failed.append(test)
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "marked"
            reason = reason.removeprefix("Skipped: ")
            one.skipped[reason] = one.skipped.get(reason, 0) + 1
        if report.when == "call" and report.passed:
            one.passed += 1
            one.modules[Path(report.nodeid.partition("::")[0]).name] = self._about.get(report.nodeid, "")
            shown = [value[1] for key, value in properties if key == DIFFERS and value[0] == name]
            one.differs += [difference for difference in shown if difference not in one.differs]
            one.figures += [Figure(**value[1]) for key, value in properties if key == FIGURE and value[0] == name]


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(prog="python -m tests.real", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(one.name for one in COMPONENTS))
    parser.add_argument("--record", action="store_true", help="keep what was found in tests/real/tried.json")
    parser.add_argument(
        "--directory", type=Path, default=get.default_directory(), help="where get.py keeps them (%(default)s)"
    )
    parser.add_argument("--campaign", action="store_true", help="the long tests, too")
    parser.add_argument(
        "-k", metavar="EXPRESSION", default="", help="some tests only, as pytest's -k; the page says so"
    )
    given = parser.parse_args()
    if unknown := set(given.names) - NAMES:
        parser.error(f"there is no {', '.join(sorted(unknown))}; --help lists what there is")
    for variable, path in get.variables(given.directory.absolute()).items():
        os.environ.setdefault(variable, str(path))
    versions: dict[str, str] = {}
    for component in COMPONENTS:
        if given.names and component.name not in given.names:
            continue
        place = component.place()
        if place is None:
            print(f"{component.name:10} skipped: it is not there; {component.get()}")
            continue
        versions[component.name] = component.version(place)
        print(f"{component.name:10} {versions[component.name]}")
    if not versions:
        return 0
    sys.stdout.flush()
    recorder = RunRecorder(versions, others=not given.names)
    marks = "real" if given.campaign else "real and not campaign"
    options = ["-n", "0", "-p", "no:cacheprovider", "-m", marks, "-k", given.k, str(HERE)]
    code = int(pytest.main(options, plugins=[recorder]))
    if given.record:
        for one in recorder.tried.values():
            one.seconds, one.some = round(one.seconds, 1), given.k
            one.stopped = code == pytest.ExitCode.INTERRUPTED
        save({name: one for name, one in recorder.tried.items() if one.passed or one.failed})
        print("kept in tests/real/tried.json; now: python -m tests.real.tried > docs/tried-with.md")
    return code


if __name__ == "__main__":
    sys.exit(main())
