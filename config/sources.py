"""Read the sources of values: the file, the environment, the flags. Each gives a flat table, key → ``Given``.

Scalars stay text, also those of the file; only the models convert them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from config.deprecated import DEPRECATED, name_of_today
from config.findings import ConfigError, Finding
from config.models import blocks, is_secret, keys, variable
from config.types import nearest

VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{")
"""``${VAR}``, ``$${`` for a literal ``${``, or a ``${`` that is neither."""

_NULL = {"", "~", "null", "Null", "NULL"}


@dataclass(frozen=True)
class Given:
    """A value as a source gives it: text, a list or mapping of texts, or ``None`` for "not set".

    ``where`` names the source for a person. ``literal``: ``${VAR}`` is not replaced. ``broken`` names variables of the
    value that are not set, so that it cannot be used.
    """

    value: Any = field(repr=False)
    where: str
    literal: bool = False
    broken: str = ""


def read_environment(environ: Mapping[str, str], findings: list[Finding]) -> Iterator[tuple[str, Given]]:
    """Yield the values of ``APP_*`` variables. An empty one counts as unset; one that names no key gets a warning."""
    names = {variable(key): key for key in (*keys(), *DEPRECATED)}
    for name, text in environ.items():
        if name in names and text:
            yield names[name], Given(None if text in _NULL else text, f"environment {name}", literal=True)
        elif name.startswith("APP_") and text:
            near = nearest(name.lower(), [one.lower() for one in names])
            hint = f"did you mean {near.upper()}?" if near else None
            message = "the environment variable begins with APP_ but names no configuration key"
            findings.append(Finding("unknown-variable", name, message, hint, "warning"))


def read_flags(overrides: Sequence[str], findings: list[Finding]) -> Iterator[tuple[str, Given]]:
    """Yield the values of ``--set KEY=VALUE``."""
    for number, override in enumerate(overrides, start=1):
        key, equals, text = override.partition("=")
        if not equals or not key:
            message, hint = "--set takes a dotted key, an equals sign and a value", "write --set retry.max_attempts=3"
            findings.append(Finding("override-syntax", f"--set, number {number}", message, hint))
        elif key not in keys() and key not in DEPRECATED:
            findings.append(_unknown(key, "--set"))
        else:
            if is_secret(DEPRECATED.get(key, key)) and not any(match[1] for match in VARIABLE.finditer(text)):
                name, hint = key.rpartition(".")[2], f"set {variable(key)}, or write --set '{key}=${{VARIABLE}}'"
                message = f"{name} is a secret; values of --set are kept with the job, where others can read them"
                findings.append(Finding("secret-on-command-line", key, message, hint, where="--set"))
            yield key, Given(None if text in _NULL else text, "--set")


def read_file(path: Path, findings: list[Finding]) -> Iterator[tuple[str, Given]]:
    """Yield the values of the file. Raises ``ConfigError`` if it cannot be read or is no YAML mapping."""
    text = _text_of(path)
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
        if root is not None and not isinstance(root, yaml.MappingNode):
            hint = f"its keys are {', '.join(_names_in(''))}"
            raise _rejected("config-not-a-mapping", path, "the file is not a mapping of keys", hint)
        yield from _block(root, "", path, findings) if root is not None else ()
    except (yaml.YAMLError, RecursionError) as error:
        hint = "look for a missing quote, a tab or wrong indentation at or above this place"
        raise _rejected("config-yaml", _place(path, text, error), "the file is not valid YAML", hint) from None


def _block(node: yaml.MappingNode, block: str, path: Path, findings: list[Finding]) -> Iterator[tuple[str, Given]]:
    """Yield the keys of a block of the file and of the blocks in it."""
    for key, value, line in _entries(node, block, findings):
        where = f"{path}:{line}"
        if key in keys() or key in DEPRECATED:
            yield key, Given(_plain(value, key, findings), where)
        elif key not in blocks():
            findings.append(_unknown(key, where))
        elif isinstance(value, yaml.MappingNode):
            yield from _block(value, key, path, findings)
        elif not _is_null(value):
            message, hint = f"{key.rpartition('.')[2]} must be a block of keys", f"with {', '.join(_names_in(key))}"
            findings.append(Finding("wrong-type", key, message, hint, where=where))


def _entries(node: yaml.MappingNode, path: str, findings: list[Finding]) -> Iterator[tuple[str, yaml.Node, int]]:
    """Yield the path, value and line of each entry; add a finding for a repeated key."""
    lines: dict[str, int] = {}
    for name, value in node.value:
        if not isinstance(name, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem_mark=name.start_mark)
        key, line = f"{path}.{name.value}".lstrip("."), name.start_mark.line + 1
        if key in lines:
            message = f"{name.value} is given twice, in lines {lines[key]} and {line}"
            findings.append(Finding("duplicate-key", key, message, "keep one of them"))
        lines.setdefault(key, line)
        yield key, value, line


def _plain(node: yaml.Node, path: str, findings: list[Finding]) -> Any:
    """Return the value of a node: text, or a list or mapping of texts; ``None`` for null."""
    if isinstance(node, yaml.MappingNode):
        entries = _entries(node, path, findings)
        return {key.removeprefix(f"{path}."): _plain(value, key, findings) for key, value, _ in entries}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(one, f"{path}[{index}]", findings) for index, one in enumerate(node.value)]
    return None if _is_null(node) else node.value


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value in _NULL


def _names_in(block: str) -> list[str]:
    return [*blocks()[block].model_fields]


def _unknown(key: str, where: str) -> Finding:
    return Finding("unknown-key", key, f"{key} is not a configuration key", _suggestion(key), where=where)


def _suggestion(key: str) -> str:
    """Return a hint for an unknown key: the key or block with the most similar name and path, else its siblings."""
    if today := name_of_today(key):
        return f"here it is called {today}"
    if key in blocks():
        return f"it is a block: set one of its keys, {', '.join(_names_in(key))}"
    block, _, name = key.rpartition(".")

    def closeness(known: str) -> float:
        last = known.rpartition(".")[2]
        ratio = 1.0 if name in last.split("_") else difflib.SequenceMatcher(None, name.lower(), last).ratio()
        return ratio + difflib.SequenceMatcher(None, key.lower(), known).ratio() if ratio >= 0.6 else 0.0

    best = max((one for one in (*keys(), *blocks()) if not f"{key}.".startswith(f"{one}.")), key=closeness)
    known = ", ".join(_names_in(block if block in blocks() else ""))
    return f"did you mean {best}?" if closeness(best) else f"known here: {known}"


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = f"looked in {path.absolute().parent}; sluice config init writes a first one"
        raise _rejected("config-not-found", path, "there is no such configuration file", hint) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise _rejected("config-encoding", f"{path}:{line}", "the file is not UTF-8", "save it as UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise _rejected("config-unreadable", path, f"the file cannot be read: {reason}") from None


def _place(path: Path, text: str, error: Exception) -> str:
    """Return the file and line of a YAML error. Its message is not used, because it may quote the file."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    position = getattr(error, "position", None)  # of a character that YAML does not allow
    line = mark.line if mark else text.count("\n", 0, position) if isinstance(position, int) else None
    return str(path) if line is None else f"{path}:{line + 1}"


def _rejected(reference: str, place: str | Path, message: str, hint: str | None = None) -> ConfigError:
    return ConfigError([Finding(reference, str(place), message, hint)])
