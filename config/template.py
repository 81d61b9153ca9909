"""The example of every key, ``config/example.yaml``, and a first configuration for some steps.

Comments are the descriptions of the models, and values their examples. They come from the walk that makes the reference
page and the JSON Schema, too: ``python -m config.template > config/example.yaml``.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import yaml

from config.auth import BASIC
from config.document import Scalar, parse_document
from config.fields import ConfigBlock, KeyKind
from config.keys import KeyInfo, described
from config.rules import required
from config.services import SendMode
from config.steps import STEPS, Role, has_role

_PLAIN = re.compile(r"[A-Za-z0-9/.$][^\s#'\"{}\[\],&*!|>%@`]*(\$\{\w+\}[^\s#'\"{}\[\],]*)*")
_HEADING = """\
# yaml-language-server: $schema=pipeline.schema.json
#
# Generated from the models: python -m config.template > config/example.yaml
#
# A configuration of Sluice with every key. A line that begins with "#" and a letter or "-" right after it is a key
# that is switched off: remove the "#" to set it. Every key can also be set by an environment variable: APP_ and its
# path in capitals, for example APP_SERVICES_SEND_URL. docs/configuration.md explains every key.
"""

SIGNED_IN = tuple(name for name, step in STEPS.items() if step.signs_in)
"""Steps whose service usually asks for a user name and a password."""

FIRST = ("extractor", "pseudonymizer", "send")
"""Steps whose keys are set in the example."""

TERMS = tuple(f"report.{name}" for name in ("purpose", "legal_basis", "recipient", "retention", "contact"))
"""What a reviewer asks about before data leave, shown on the first screen of the release report."""


@dataclass
class ExampleEntry:
    """A key or block of the example: its comment, its value, and the keys below it."""

    path: str
    said: str
    value: str = ""
    below: list[ExampleEntry] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def indent(self) -> str:
        """Return the white space before the key."""
        return "  " * self.path.count(".")


def example() -> dict[str, ExampleEntry]:
    """Return every key and block of the example by its path, in its order."""
    found: dict[str, ExampleEntry] = {}
    models: dict[str, type[ConfigBlock]] = {}
    for one in described():
        if isinstance(one, KeyInfo):
            told = one.maximum is not None or (isinstance(one.minimum, int) and one.minimum > 1)
            bounds = one.range_text.removeprefix("must be ") if told else ""
            entry = ExampleEntry(one.key, one.description + (f" ({bounds})" if bounds else ""), _value(one))
        else:
            path, model = one
            models[path] = model
            block, _, name = path.rpartition(".")
            own = models[block].model_fields[name].description if name else None
            said = own or (model.__doc__ or "").partition("\n")[0].partition(": ")[2]
            step = path.removeprefix("services.")
            entry = ExampleEntry(
                path, said[:1].upper() + said[1:].rstrip(".") + (f" (step: {step})" if step in STEPS else "")
            )
        found[entry.path] = entry
        if (above := found.get(entry.path.rpartition(".")[0])) is not None and above is not entry:
            above.below.append(entry)
    return found


def _value(info: KeyInfo) -> str:
    if info.kind is not KeyKind.RULES:
        return info.example_text
    return "\n" + yaml.safe_dump(list(info.example), sort_keys=False).rstrip()


def render_example() -> str:
    """Return the example: the keys of ``FIRST`` are set, all others switched off."""
    active = {*to_fill_in(FIRST, SendMode.DIRECT_RESOURCE_LOAD), "pipeline.enabled_steps"}
    active |= {f"services.{step}.auth.{name}" for step in FIRST if step in SIGNED_IN for name in BASIC}
    lines: list[str] = []
    for entry in example()[""].below:
        lines += ["", *_comment_lines(entry), f"{entry.name}:"] if entry.below else [""]
        if not entry.below:
            lines += _shown(entry, active, {}, on=False)
        for below in entry.below:
            lines += [""] if below.below and below is not entry.below[0] else []
            lines += _shown(below, active, {}, on=bool(below.below) or _on(below, active))
    return _HEADING + "\n".join(lines) + "\n"


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
    lines += ["", *([*_comment_lines(entries["services"]), "services:"] if services else [])]
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
    value, *more = (_written(given[entry.path], entry.value) if entry.path in given else entry.value).split("\n")
    yield f"{entry.indent}{off}{entry.name}:{f' {value}' if value else ''}"
    for line in more:
        text = line.lstrip()
        yield f"{entry.indent}  {line[: len(line) - len(text)]}{off}{text}"
    for below in entry.below:
        yield from _shown(below, active, given, on=_on(below, active))


def _on(entry: ExampleEntry, active: Collection[str]) -> bool:
    return entry.path in active or any(key.startswith(f"{entry.path}.") for key in active)


def _comment_lines(entry: ExampleEntry) -> list[str]:
    """Return what is said of an entry as comments of at most 120 characters."""
    lines = textwrap.wrap(entry.said.replace("`", ""), 118 - len(entry.indent), break_on_hyphens=False)
    return [f"{entry.indent}# {line}" for line in lines]


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


if __name__ == "__main__":
    sys.stdout.write(render_example())
