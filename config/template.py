"""A first configuration for some steps: ``config/example.yaml`` with just the blocks that these steps need.

Texts and values stand in the example alone, which a test keeps complete; here is what of it is shown and switched on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from config.auth import BASIC
from config.document import Scalar, parse_document
from config.rules import required
from config.services import SendMode
from config.steps import STEPS, Role, has_role

EXAMPLE = Path(__file__).with_name("example.yaml")

_KEY = re.compile(r"(?P<indent> *)(?P<off>#?)(?P<name>[a-z][a-z0-9_]*):(?P<value>.*)")
_PLAIN = re.compile(r"[A-Za-z0-9/.$][^\s#'\"{}\[\],&*!|>%@`]*(\$\{\w+\}[^\s#'\"{}\[\],]*)*")

SIGNED_IN = tuple(name for name, step in STEPS.items() if step.signs_in)
"""Steps whose service usually asks for a user name and a password."""

TERMS = tuple(f"report.{name}" for name in ("purpose", "legal_basis", "recipient", "retention", "contact"))
"""What a reviewer asks about before data leave, shown on the first screen of the release report."""


@dataclass
class ExampleEntry:
    """A key of the example: what is said above it, how it is written, and what is below it."""

    path: str
    indent: str
    said: list[str]
    value: str
    below: list[ExampleEntry] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.path.rpartition(".")[2]


def example() -> dict[str, ExampleEntry]:
    """Return every key and block of the example by its path, in its order."""
    found: dict[str, ExampleEntry] = {}
    open_: list[ExampleEntry] = []
    said: list[str] = []
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        match = _KEY.fullmatch(line)
        if match is None:
            said = [*said, line.strip()] if line.strip().startswith("# ") else []
            continue
        open_ = [entry for entry in open_ if len(entry.indent) < len(match["indent"])]
        path = ".".join([*(entry.name for entry in open_), match["name"]])
        entry = found[path] = ExampleEntry(path, match["indent"], said, match["value"].strip())
        if open_:
            open_[-1].below.append(entry)
        open_.append(entry)
        said = []
    return found


def to_fill_in(steps: Sequence[str], mode: SendMode) -> list[str]:
    """Return the keys that must be set correctly for these steps, in the order of the steps."""
    return [key for step in dict.fromkeys(steps) for key in (*STEPS[step].keys("suggests"), *required(step, mode))]


def may_sign_in(steps: Sequence[str], mode: SendMode) -> list[str]:
    """Return the steps whose service may need a user name and a password."""
    blocks = example()
    return [
        step
        for step in dict.fromkeys(steps)
        if f"services.{step}.auth" in blocks and not (has_role(step, Role.SEND) and mode is SendMode.S3_UPLOAD)
    ]


def template(
    steps: Sequence[str],
    *,
    mode: SendMode = SendMode.DIRECT_RESOURCE_LOAD,
    values: Mapping[str, str] | None = None,
    signed_in: Collection[str] = SIGNED_IN,
    heading: Sequence[str] = (),
) -> str:
    """Return the text of a configuration of these steps; ``values`` replace those of the example.

    ``signed_in`` are the steps whose service gets a name and a password; every secret is a ``${VAR}``.
    """
    entries = example()
    given = dict(values or {})
    if any(has_role(step, Role.SEND) for step in steps):
        given["services.send.send_as"] = str(mode)
    active = {*to_fill_in(steps, mode), *given}
    for step in may_sign_in(steps, mode):
        if step in signed_in:
            active |= {f"services.{step}.auth.{name}" for name in BASIC}
    services = [entries[f"services.{step}"] for step in STEPS if step in steps and f"services.{step}" in entries]
    lines = [f"# {line}".rstrip() for line in heading]
    lines += ["", "# What the pipeline talks to." if services else "", *(["services:"] if services else [])]
    for entry in services:
        lines += [*_shown(entry, active, given, on=True), ""]
    if any(key.startswith("report.") for key in given):
        report = entries["report"]
        lines += [*_comment_lines(report), "report:"]
        for key in TERMS:
            entry = entries[key]
            shown = f"{entry.name}: {_text(given[key])}" if key in given else f"#{entry.name}: {entry.value}"
            lines += [f"{entry.indent}{shown}"]
        lines += [""]
    steps_entry = entries["pipeline.enabled_steps"]
    lines += [*_comment_lines(entries["pipeline"]), "pipeline:"]
    lines += [f"{steps_entry.indent}enabled_steps: [{', '.join(steps)}]", "", *_comment_lines(entries["jobs_dir"])]
    lines += [f"jobs_dir: {given.get('jobs_dir', entries['jobs_dir'].value)}"]
    return "\n".join(lines).lstrip("\n") + "\n"


def _shown(entry: ExampleEntry, active: Collection[str], given: Mapping[str, str], *, on: bool) -> Iterator[str]:
    yield from _comment_lines(entry)
    off = "" if on else "#"
    value = _written(given[entry.path], entry.value) if entry.path in given else entry.value
    yield f"{entry.indent}{off}{entry.name}:{f' {value}' if value else ''}"
    for below in entry.below:
        yield from _shown(below, active, given, on=_on(below, active))


def _on(entry: ExampleEntry, active: Collection[str]) -> bool:
    return entry.path in active or any(key.startswith(f"{entry.path}.") for key in active)


def _comment_lines(entry: ExampleEntry) -> list[str]:
    return [f"{entry.indent}{line}" for line in entry.said]


def _written(value: str, before: str) -> str:
    """Return a value in YAML, in the form of the example's value: a list stays a list."""
    if before.startswith("["):
        return f"[{', '.join(_text(one.strip()) for one in value.split(','))}]"
    return _text(value)


def _text(value: str) -> str:
    quoted = json.dumps(value, ensure_ascii=False)
    if not _PLAIN.fullmatch(value):
        return quoted
    read, _ = parse_document(value)
    return value if isinstance(read, Scalar) and read.value == value else quoted


def variables(text: str) -> list[str]:
    """Return the variables on active lines of a configuration, in order."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return list(dict.fromkeys(re.findall(r"(?<!\$)\$\{(\w+)\}", "\n".join(lines))))
