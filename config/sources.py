"""Sources of values: flags, the environment, the file. In this order, the first that has a key wins.

Each source turns what it holds into a ``Layer``: values by key path, still unread, each with its origin. Nothing
is validated here beyond "is this a key at all".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from collections.abc import Mapping as AbstractMapping
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from config.deprecated import (
    DEPRECATED,
    REMOVED_BLOCKS,
    RENAMED,
    RENAMED_STEPS,
    current_path,
    older_paths,
)
from config.document import DocumentError, Mapping, Node, Scalar, Sequence, parse_document
from config.fields import KeyKind
from config.findings import ConfigError, Finding, about
from config.keys import ENV_PREFIX, blocks, env_name, keys_by_name, meant, suggest, suggest_variable

LARGEST_FILE = 4 * 1024 * 1024
"""Bytes. A configuration is a page of text; this keeps a data file named by mistake out of memory."""

_TEXT_KINDS = frozenset({KeyKind.TEXT, KeyKind.URL, KeyKind.SECRET, KeyKind.PATH, KeyKind.CHOICE, KeyKind.DURATION})


@dataclass(frozen=True)
class GivenValue:
    """Value of a key or a block in one source; ``where`` names its origin for a person (``4-product.md`` §2).

    ``older``: the source uses names of the peer tool, whose URLs may end in ``/fhir`` (document 7, section 5).
    """

    node: Node
    source: Literal["flag", "environment", "file"]
    where: str
    older: bool = False

    @property
    def label(self) -> str:
        """Return where it comes from, for the list of all values."""
        return f"file {self.where}" if self.source == "file" else self.where

    @property
    def line(self) -> int | None:
        """Return its line of the configuration file."""
        return self.node.line if self.source == "file" else None

    @property
    def unset(self) -> bool:
        """Return whether the value is an explicit null, which selects the built-in default."""
        return isinstance(self.node, Scalar) and self.node.value is None

    def finding(
        self, reference: str, key: str, message: str, hint: str | None, level: Literal["error", "warning"] = "error"
    ) -> Finding:
        """Return what is wrong with it, with its place."""
        return Finding(reference, key, message, hint, level, self.line, self.where)


@dataclass
class Layer:
    """Values of one source, and the findings about them.

    ``broken`` are the keys it was meant to give, had it been readable; ``blocks`` are those of the file.
    ``replaced`` is what a later flag took the place of: not in force, but on the command line and in the record.
    """

    values: dict[str, GivenValue] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    blocks: dict[str, GivenValue] = field(default_factory=dict)
    replaced: list[tuple[str, GivenValue]] = field(default_factory=list)

    written: dict[str, str] = field(default_factory=dict)
    """How the source names its blocks and keys, by their paths of today."""

    def current_path(self, path: str, given: GivenValue) -> str:
        """Return the path of today for a block or key. Warn of an older name; report two names for one thing."""
        new = RENAMED.get(path, path)
        block, _, name = new.rpartition(".")
        if new != path:
            hint = f"write {name}: below {block}" if block else f"write {name}:"
            message = about(path, f"is an older name of {new}")
            self.findings.append(given.finding("deprecated-key", path, message, hint, "warning"))
        if self.written.setdefault(new, path) != path:
            old = path if path in RENAMED else self.written[new]
            message = about(old, f"is an older name of {new}, which is set too")
            self.findings.append(given.finding("deprecated-and-current", old, message, "keep one of them"))
        return new

    def current_steps(
        self, key: str, given: GivenValue, give: Callable[[Node], GivenValue] | None = None
    ) -> GivenValue:
        """Return a list of steps with the step names of today, and any other value unchanged."""
        node = given.node
        if isinstance(node, Scalar) and isinstance(node.value, str) and given.source == "flag":
            node = Sequence(node.line, tuple(Scalar(node.line, name, name) for name in split_list(node.text)))
        if key != "pipeline.enabled_steps" or not isinstance(node, Sequence):
            return given
        items = list(node.items)
        for index, item in enumerate(items):
            new = RENAMED_STEPS.get(item.text) if isinstance(item, Scalar) else None
            if new is not None and isinstance(item, Scalar):
                items[index] = replace(item, text=new, value=new)
                message = f"{item.text} is an older name of the step {new}"
                at = given if give is None else give(item)
                self.findings.append(
                    at.finding("deprecated-key", f"{key}[{index}]", message, f"write {new}", "warning")
                )
        return replace(given, node=Sequence(node.line, tuple(items)))


def kind_of(key: str) -> KeyKind:
    """Return the kind of a key, deprecated ones included."""
    return DEPRECATED[key].kind if key in DEPRECATED else keys_by_name()[key].kind


def is_key(path: str) -> bool:
    """Return whether ``path`` can have a value."""
    return path in keys_by_name() or path in DEPRECATED


def read_file(path: Path) -> Layer:
    """Read the configuration file.

    Raises ``ConfigError`` when there is nothing to look into: no readable file, no YAML, no mapping.
    """
    text = text_of(path)
    layer = Layer()
    try:
        root, duplicates = parse_document(text)
    except DocumentError as error:
        at = f", line {error.line}" if error.line else ""
        at += f", column {error.column}" if error.line and error.column else ""
        hint = "look for a missing quote, a tab or wrong indentation at or above this place"
        raise _rejected("config-yaml", path, f"the configuration file {error}{at}", hint, error.line) from None
    if root is None:
        hint = "it needs at least services and pipeline.enabled_steps"
        raise _rejected("config-empty", path, "the configuration file is empty", hint)
    if not isinstance(root, Mapping):
        hint = "the top-level keys are services, pipeline, retry, tls, compression, report, jobs_dir"
        raise _rejected("config-not-a-mapping", path, "the file is not a mapping of keys", hint, root.line)

    older = _uses_older_names(root)

    def given_value(node: Node) -> GivenValue:
        return GivenValue(node, "file", f"{path}:{node.line}", older)

    for twice in duplicates:
        message = about(twice.path, f"is given twice, in lines {twice.first_line} and {twice.line}")
        second = given_value(Scalar(twice.line, "", None))
        layer.findings.append(second.finding("duplicate-key", twice.path, message, "keep one of them"))
    layer.values = {
        key: layer.current_steps(key, value, given_value) for key, value in _known_keys(root, "", layer, given_value)
    }
    return layer


def _uses_older_names(root: Mapping) -> bool:
    """Return whether a file has a block, a key or a step that is named as the peer tool does."""
    steps = getattr(_found(root, "pipeline.enabled_steps"), "items", ())
    return any(_found(root, path) for path in RENAMED) or any(
        getattr(step, "text", "") in RENAMED_STEPS for step in steps
    )


def _found(root: Node | None, path: str) -> Node | None:
    """Return what stands at a dotted path of a file."""
    for name in path.split("."):
        root = root.entries.get(name) if isinstance(root, Mapping) else None
    return root


def read_environment(environ: AbstractMapping[str, str], prefix: str = ENV_PREFIX) -> Layer:
    """Read the variables with this prefix. An empty one counts as unset; one that names no key gets a warning.

    Names of older files are accepted, and every variable with another prefix than today's: with a warning.
    """
    layer = Layer()
    today = {env_name(key): key for key in (*keys_by_name(), *DEPRECATED)}
    names = {env_name(path): key for key in today.values() for path in older_paths(key)} | today
    for variable, text in environ.items():
        if not variable.startswith(prefix) or text == "":
            continue
        current = ENV_PREFIX + variable.removeprefix(prefix)
        key = names.get(current)
        if key is None:
            near = suggest_variable(current.lower(), list(names))
            layer.findings.append(
                Finding(
                    "unknown-variable",
                    variable,
                    f"the environment variable begins with {prefix} but names no configuration key",
                    near,
                    level="warning",
                )
            )
            continue
        where = f"environment {variable}"
        if (other := layer.written.setdefault(key, variable)) != variable:
            message = f"the environment variables {other} and {variable} are two names of {key}"
            layer.findings.append(Finding("deprecated-and-current", key, message, "unset one of them", where=where))
        if variable != env_name(key):
            old = DEPRECATED.get(key)
            message = f"the environment variable {variable} has an older name"
            hint = f"use {env_name(old.replacement if old and old.replacement else key)}"
            layer.findings.append(Finding("deprecated-key", variable, message, hint, "warning", where=where))
        try:
            given = GivenValue(_environment_node(key, text), "environment", where, older=variable != env_name(key))
            layer.values[key] = layer.current_steps(key, given)
        except DocumentError:
            layer.findings.append(_broken_value(key, where))
            layer.broken.add(key)
    return layer


def read_overrides(overrides: AbstractSequence[str]) -> Layer:
    """Read the ``KEY=VALUE`` texts of the command line; a later one for the same key wins."""
    layer = Layer()
    for number, override in enumerate(overrides, start=1):
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not key:
            layer.findings.append(
                Finding(
                    "override-syntax",
                    f"--set, number {number}",
                    "an override is a dotted key, an equals sign and a value",
                    "write it like retry.max_attempts=3",
                )
            )
            continue
        key = _current_flag(key, layer)
        if not is_key(key) and key not in blocks():
            layer.findings.append(_unknown(key, _flag(Scalar(1, text, text))))
            continue
        try:
            node = _override_node(key, text)
        except DocumentError:
            layer.findings.append(_broken_value(key, "flag"))
            layer.broken |= _below(key)
            continue
        found = [(key, _flag(node))] if is_key(key) else _block(_flag(node), key, layer, _flag)
        for name, given in found:
            if name in layer.values:
                layer.replaced.append((name, layer.values[name]))
            layer.values[name] = layer.current_steps(name, given)
    return layer


def _current_flag(key: str, layer: Layer) -> str:
    """Return the key of today for one of ``--set``; a warning says which name is older."""
    new = current_path(key)
    if new != key:
        message = about(key, f"is an older name of {new}")
        layer.findings.append(Finding("deprecated-key", key, message, f"use {new}", "warning", where="flag"))
    return new


def _flag(node: Node) -> GivenValue:
    return GivenValue(node, "flag", "flag")


def split_list(text: str) -> list[str]:
    """Comma-separated text as a list; blanks around the items and empty items do not count."""
    return [item.strip() for item in text.split(",") if item.strip()]


def _environment_node(key: str, text: str) -> Node:
    kind = kind_of(key)
    if kind is KeyKind.RULES or (kind is KeyKind.LIST and text.lstrip().startswith("[")):
        return parse_document(text)[0] or Scalar(1, text, text)
    if kind is KeyKind.LIST:
        return Sequence(1, tuple(Scalar(1, item, item) for item in split_list(text)))
    return Scalar(1, text, text)


def _override_node(key: str, text: str) -> Node:
    """Return the value of ``--set``, as YAML reads it.

    Where the key wants text, only quotes and null are YAML's: a path with ``#`` or ``: `` in it stays whole.
    """
    if is_key(key) and kind_of(key) in _TEXT_KINDS and not text.lstrip().startswith(("'", '"')):
        if text.strip() in {"", "~", "null"}:
            return Scalar(1, text, None)
        return Scalar(1, text, text)
    node, _ = parse_document(text)
    return node if node is not None else Scalar(1, "", None)


def _known_keys(
    root: Mapping, prefix: str, layer: Layer, give: Callable[[Node], GivenValue]
) -> Iterator[tuple[str, GivenValue]]:
    """Yield every known key below ``root``; unknown keys become findings."""
    for entry, node in root.entries.items():
        given = give(node)
        path = layer.current_path(f"{prefix}.{entry}".lstrip("."), given)
        if is_key(path):
            yield path, given
        elif path in blocks():
            layer.blocks[path] = given
            yield from _block(given, path, layer, give)
        elif path in REMOVED_BLOCKS:
            message = about(path, "configures a service that is no longer used")
            hint = "remove it: the step flattening writes the tables"
            layer.findings.append(given.finding("deprecated-key", path, message, hint, "warning"))
        else:
            layer.findings.append(_unknown(path, given))
            layer.broken |= _below(meant(path, RENAMED) or path)  # no error for what a misspelled block may hold


def _block(
    given: GivenValue, path: str, layer: Layer, give: Callable[[Node], GivenValue]
) -> Iterator[tuple[str, GivenValue]]:
    if isinstance(given.node, Mapping):
        yield from _known_keys(given.node, path, layer, give)
    elif not given.unset:
        layer.broken |= _below(path)
        direct = sorted({key.removeprefix(f"{path}.").partition(".")[0] for key in _below(path)})
        message, hint = about(path, "must be a block of keys"), f"its keys are {', '.join(direct)}"
        layer.findings.append(given.finding("wrong-type", path, message, hint))


def _below(path: str) -> set[str]:
    """Return the key itself, or every key of the block."""
    return {key for key in keys_by_name() if key == path or key.startswith(f"{path}.")}


def _unknown(path: str, given: GivenValue) -> Finding:
    shown = path if path.isprintable() and len(path) <= 120 else f"{path[:60]!a}…"
    return given.finding("unknown-key", shown, about(shown, "is not a configuration key"), suggest(path, RENAMED))


def _broken_value(key: str, where: str) -> Finding:
    return Finding(
        "config-yaml", key, about(key, "has a value that is not valid YAML"), "put it in quotes", where=where
    )


def text_of(path: Path) -> str:
    """Return the text of a configuration file. Raises ``ConfigError`` where it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        hint = f"looked in {os.fspath(path.absolute().parent)}; sluice config init writes a first one"
        raise _rejected("config-not-found", path, "there is no such configuration file", hint) from None
    except IsADirectoryError:
        hint = "name the YAML file in it"
        raise _rejected("config-is-directory", path, "the configuration is a directory", hint) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        raise _rejected("config-unreadable", path, f"the file cannot be read: {reason}", None) from None
    if len(content) > LARGEST_FILE:
        message = f"the configuration file is larger than {LARGEST_FILE // 2**20} MiB"
        raise _rejected("config-too-large", path, message, "is it a data file?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"the configuration file is not UTF-8, line {line}"
        raise _rejected("config-encoding", path, message, "save it as UTF-8", line) from None


def _rejected(reference: str, path: Path, message: str, hint: str | None, line: int | None = None) -> ConfigError:
    key = os.fspath(path) if line is None else f"{os.fspath(path)}:{line}"
    return ConfigError([Finding(reference, key, message, hint, line=line)])
