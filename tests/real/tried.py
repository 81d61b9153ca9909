"""Results of tests with real programs, stored in ``tried.json`` by ``python -m tests.real --record``, and their page.

    python -m tests.real.tried > docs/tried-with.md

A record holds what a run found: versions, counts, names of tests, figures. No path of a machine, nothing of the data.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.real.components import COMPONENTS, Component

KEPT = Path(__file__).with_name("tried.json")


@dataclass(frozen=True)
class Figure:
    """Performance of a step with a program: stored bytes of its input, seconds of wall time."""

    what: str
    resources_in: int | None
    resources_out: int | None
    findings: int | None
    files: int | None
    bytes_in: int | None
    seconds: float


@dataclass
class Tried:
    """One program, one run. ``modules``: tests that passed by module, with what the module says of itself."""

    version: str
    date: str
    seconds: float = 0.0
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    """How many by the reason that they gave."""
    modules: dict[str, str] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    """Known differences that a test has shown in this run."""
    some: str = ""
    """The expression that chose some of its tests; empty when all were run."""
    stopped: bool = False
    """Somebody stopped the run before its end."""

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Tried:
        """As it was kept."""
        return cls(**{**kept, "figures": [Figure(**figure) for figure in kept["figures"]]})


def load(path: Path = KEPT) -> dict[str, Tried]:
    """Return the stored results by the name of the component."""
    if not path.exists():
        return {}
    return {name: Tried.read(one) for name, one in json.loads(path.read_text(encoding="utf-8")).items()}


def save(tried: Mapping[str, Tried], path: Path = KEPT) -> None:
    """Keep these, and of other components what was kept before."""
    known = {**load(path), **tried}
    ordered = {one.name: asdict(known[one.name]) for one in COMPONENTS if one.name in known}
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


_HEAD = """# Tried with

This page lists the third-party services that Sluice was tested with on one machine, with versions, results and known
differences. To run these tests yourself, also with your own TORCH, see
[Development](development.md#against-real-programs). [Contracts](contracts.md) describes the requests to each service
and the expected answers.

The page is generated. `python tests/real/get.py all` fetches the services at these versions,
`python -m tests.real --record` runs the tests and writes the results to `tests/real/tried.json`, and
`python -m tests.real.tried > docs/tried-with.md` writes the page.

| Component | Version | Used as | Result | Seconds | Date |
|---|---|---|---|---|---|
"""

_UNTRIED = """
## Not tested

- **Queries in CQL** with a TORCH were not tested with any FHIR server behind it.
- **fhir-pseudonymizer** (MIRACUM), **fhir-flattener** and **Blaze** are not in the package registries that `get.py`
  uses. The sandbox's services replace fhir-pseudonymizer and Blaze in the tests, and Pathling behind a test service
  replaces fhir-flattener.
"""


def render(tried: Mapping[str, Tried]) -> str:
    """Return the page."""
    return "".join(_page(tried))


def _page(tried: Mapping[str, Tried]) -> Iterator[str]:
    yield _HEAD
    for component in COMPONENTS:
        yield _row(component, tried.get(component.name))
    yield "\n## What was run\n\n| Component | Tests | Subject |\n|---|---|---|\n"
    for component, one in _tried_components(tried):
        for module, about in sorted(one.modules.items()):
            yield f"| {component.title} | `{module}` | {_cell(about).replace('``', '`')} |\n"
    yield "\n## Figures\n\nEach figure comes from a single run on a machine with other load. "
    yield "It shows the order of magnitude and is not a benchmark.\n\n"
    yield "| Component | What | Resources in | Out | Findings | Files | kB | Seconds |\n" + "|---" * 8 + "|\n"
    for component, one in _tried_components(tried):
        for figure in one.figures:
            kilobytes = None if figure.bytes_in is None else round(figure.bytes_in / 1000)
            counts = (figure.resources_in, figure.resources_out, figure.findings, figure.files, kilobytes)
            cells = " | ".join("–" if count is None else f"{count:,}" for count in counts)
            yield f"| {component.title} | {_cell(figure.what)} | {cells} | {figure.seconds:.1f} |\n"
    yield "\n## Known differences\n\nA test in that run showed each of these differences.\n\n"
    for component, one in _tried_components(tried):
        for difference in one.differs:
            yield f"- **{component.title}** {difference}.\n"
    yield _UNTRIED


def _tried_components(tried: Mapping[str, Tried]) -> Iterator[tuple[Component, Tried]]:
    for component in COMPONENTS:
        if component.name in tried:
            yield component, tried[component.name]


def _row(component: Component, one: Tried | None) -> str:
    if one is None:
        return f"| {component.title} | – | {component.stands_for} | not tested with this command | – | – |\n"
    said = [f"{one.passed} passed"]
    if one.failed:
        said.append(f"**{len(one.failed)} failed**: " + ", ".join(f"`{name}`" for name in one.failed))
    if one.some:
        said.append(f"only `{_cell(one.some)}`")
    if one.stopped:
        said.append("**stopped before the end**")
    said += [f"{count} skipped ({_cell(reason)})" for reason, count in one.skipped.items()]
    cells = (component.title, one.version, component.stands_for, "; ".join(said), f"{one.seconds:,.0f}", one.date)
    return f"| {' | '.join(cells)} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render(load()))
