"""Where values come from: flags, the environment, the file; in this order, the first that has a key wins.

Each source turns what it holds into a ``Layer``: values by key path, still unread, each with its origin. Nothing
is validated here beyond "is this a key at all".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from collections.abc import Mapping as AbstractMapping
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from config.deprecated import DEPRECATED
from config.document import DocumentError, Mapping, Node, Scalar, Sequence, parse_document
from config.fields import Kind
from config.findings import ConfigError, Finding, about
from config.keys import ENV_PREFIX, blocks, env_name, keys_by_name, suggest, suggest_variable

LARGEST_FILE = 4 * 1024 * 1024
"""Bytes. A configuration is a page of text; this keeps a data file named by mistake out of memory."""

_TEXT_KINDS = frozenset({Kind.TEXT, Kind.URL, Kind.SECRET, Kind.PATH, Kind.CHOICE, Kind.DURATION})


@dataclass(frozen=True)
class GivenValue:
    """What a source gives to a key or a block, and ``where`` a person finds it (``4-product.md`` §2)."""

    node: Node
    source: Literal["flag", "environment", "file"]
    where: str

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
        """Whether it says "nothing": an explicit null, so that the built-in default holds."""
        return isinstance(self.node, Scalar) and self.node.value is None

    def finding(
        self, reference: str, key: str, message: str, hint: str | None, level: Literal["error", "warning"] = "error"
    ) -> Finding:
        """Return what is wrong with it, with its place."""
        return Finding(reference, key, message, hint, level, self.line, self.where)


@dataclass
class Layer:
    """What one source gives, and what is wrong with it.

    ``broken`` are the keys it was meant to give, had it been readable; ``blocks`` are those of the file.
    ``replaced`` is what a later flag took the place of: not in force, but on the command line and in the record.
    """

    values: dict[str, GivenValue] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    blocks: dict[str, GivenValue] = field(default_factory=dict)
    replaced: list[tuple[str, GivenValue]] = field(default_factory=list)


def kind_of(key: str) -> Kind:
    """The kind of a key, deprecated ones included."""
    return DEPRECATED[key].kind if key in DEPRECATED else keys_by_name()[key].kind


def is_key(path: str) -> bool:
    """Whether a value can stand at ``path``."""
    return path in keys_by_name() or path in DEPRECATED


def read_file(path: Path) -> Layer:
    """The configuration file.

    Raises ``ConfigError`` when there is nothing to look into: no readable file, no YAML, no mapping.
    """
    text = _text_of(path)
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
        raise _rejected("config-not-a-mapping", path, "the file holds no mapping of keys", hint, root.line)

    def given(node: Node) -> GivenValue:
        return GivenValue(node, "file", f"{path}:{node.line}")

    for twice in duplicates:
        message = about(twice.path, f"is given twice, in lines {twice.first_line} and {twice.line}")
        second = given(Scalar(twice.line, "", None))
        layer.findings.append(second.finding("duplicate-key", twice.path, message, "keep one of them"))
    layer.values = dict(_leaves(root, "", layer, given))
    return layer


def read_environment(environ: AbstractMapping[str, str]) -> Layer:
    """The ``APP_`` variables. An empty one counts as unset; one that names no key gets a warning."""
    layer = Layer()
    names = {env_name(key): key for key in (*keys_by_name(), *DEPRECATED)}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or text == "":
            continue
        key = names.get(variable)
        if key is None:
            layer.findings.append(
                Finding(
                    "unknown-variable",
                    variable,
                    "the environment variable begins with APP_ but names no configuration key",
                    suggest_variable(variable.lower(), list(names)),
                    level="warning",
                )
            )
            continue
        where = f"environment {variable}"
        try:
            layer.values[key] = GivenValue(_environment_node(key, text), "environment", where)
        except DocumentError:
            layer.findings.append(_broken_value(key, where))
            layer.broken.add(key)
    return layer


def read_overrides(overrides: AbstractSequence[str]) -> Layer:
    """The ``KEY=VALUE`` texts of the command line, a later one for the same key winning."""
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
            layer.values[name] = given
    return layer


def _flag(node: Node) -> GivenValue:
    return GivenValue(node, "flag", "flag")


def split_list(text: str) -> list[str]:
    """Comma-separated text as a list; blanks around the items and empty items do not count."""
    return [item.strip() for item in text.split(",") if item.strip()]


def _environment_node(key: str, text: str) -> Node:
    kind = kind_of(key)
    if kind is Kind.RULES or (kind is Kind.LIST and text.lstrip().startswith("[")):
        return parse_document(text)[0] or Scalar(1, text, text)
    if kind is Kind.LIST:
        return Sequence(1, tuple(Scalar(1, item, item) for item in split_list(text)))
    return Scalar(1, text, text)


def _override_node(key: str, text: str) -> Node:
    """The value of ``--set``, as YAML reads it.

    Where the key wants text, only quotes and null are YAML's: a path with ``#`` or ``: `` in it stays whole.
    """
    if is_key(key) and kind_of(key) in _TEXT_KINDS and not text.lstrip().startswith(("'", '"')):
        if text.strip() in {"", "~", "null"}:
            return Scalar(1, text, None)
        return Scalar(1, text, text)
    node, _ = parse_document(text)
    return node if node is not None else Scalar(1, "", None)


def _leaves(
    root: Mapping, prefix: str, layer: Layer, give: Callable[[Node], GivenValue]
) -> Iterator[tuple[str, GivenValue]]:
    """Every known key below ``root``; unknown ones become findings."""
    for entry, node in root.entries.items():
        path, given = f"{prefix}.{entry}".lstrip("."), give(node)
        if is_key(path):
            yield path, given
        elif path in blocks():
            layer.blocks[path] = given
            yield from _block(given, path, layer, give)
        else:
            layer.findings.append(_unknown(path, given))


def _block(
    given: GivenValue, path: str, layer: Layer, give: Callable[[Node], GivenValue]
) -> Iterator[tuple[str, GivenValue]]:
    if isinstance(given.node, Mapping):
        yield from _leaves(given.node, path, layer, give)
    elif not given.unset:
        layer.broken |= _below(path)
        direct = sorted({key.removeprefix(f"{path}.").partition(".")[0] for key in _below(path)})
        message, hint = about(path, "must be a block of keys"), f"its keys are {', '.join(direct)}"
        layer.findings.append(given.finding("wrong-type", path, message, hint))


def _below(path: str) -> set[str]:
    """The key itself, or every key of the block."""
    return {key for key in keys_by_name() if key == path or key.startswith(f"{path}.")}


def _unknown(path: str, given: GivenValue) -> Finding:
    shown = path if path.isprintable() and len(path) <= 120 else f"{path[:60]!a}…"
    return given.finding("unknown-key", shown, about(shown, "is not a configuration key"), suggest(path))


def _broken_value(key: str, where: str) -> Finding:
    return Finding(
        "config-yaml", key, about(key, "has a value that is not valid YAML"), "put it in quotes", where=where
    )


def _text_of(path: Path) -> str:
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
