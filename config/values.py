"""From what a source gives to what a model reads: ``${VAR}`` replaced, text kept as written, lists split.

``${VAR}`` is replaced in the strings of the file and of ``--set``: braced form only, ``$${`` writes a literal ``${``.
A value that a higher source overrides is not expanded: its variable may not be set on this machine. Null is the default
and empty text is not set: a template that leaves a value out must not turn into an empty password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as AbstractMapping
from dataclasses import dataclass, field
from typing import Any

from config.document import Mapping, Node, Scalar, Sequence, plain
from config.fields import KeyKind, secret_parameters
from config.findings import Finding, about
from config.keys import env_name
from config.sources import GivenValue, kind_of, split_list

_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|(\$\{)")


@dataclass(frozen=True)
class Expanded:
    """A text after substitution: which variables it named, which of them are not set, whether one is malformed.

    Where ``unset`` is not empty or ``malformed`` is true, ``text`` is of no use.
    """

    text: str = field(repr=False)
    variables: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    malformed: bool = False


def expand(text: str, environ: AbstractMapping[str, str]) -> Expanded:
    """``text`` with every ``${VAR}`` replaced, in one pass: what a variable holds is not expanded again.

    A variable that is set to nothing is set. ``$VAR`` and a lone ``$`` stay as they are.
    """
    variables: list[str] = []
    malformed = False

    def replace(match: re.Match[str]) -> str:
        nonlocal malformed
        if match[0] == "$${":
            return "${"
        if match[2]:
            malformed = True
            return match[0]
        variables.append(match[1])
        return environ.get(match[1], "")

    result = _REFERENCE.sub(replace, text)
    unset = tuple(dict.fromkeys(name for name in variables if name not in environ))
    return Expanded(result, tuple(variables), unset, malformed)


@dataclass
class Reading:
    """One key's value, ready for its model, or the reasons why there is none.

    ``value`` is ``None`` when the key counts as not set (empty text). ``unset`` names the variables that are missing.
    """

    value: Any = field(default=None, repr=False)
    findings: list[Finding] = field(default_factory=list)
    unset: list[str] = field(default_factory=list)


class _TypeMismatchError(Exception):
    """The node cannot be what the key wants; carries what it should be and a hint."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def read_value(key: str, given: GivenValue, environ: AbstractMapping[str, str]) -> Reading:
    """Read the value of ``given`` for ``key``. Values from the environment are used as is (``4-product.md`` §3)."""
    reader = _ValueReader(key, given, environ)
    try:
        reader.reading.value = reader.read(kind_of(key), given.node)
    except _TypeMismatchError as error:
        reader.problem("wrong-type", str(error), error.hint)
    if reader.reading.findings or reader.reading.unset:
        reader.reading.value = None
    return reader.reading


class _ValueReader:
    def __init__(self, key: str, given: GivenValue, environ: AbstractMapping[str, str]) -> None:
        self.key, self.given, self.environ = key, given, environ
        self.reading = Reading()
        self.variables = 0

    def problem(self, reference: str, message: str, hint: str | None) -> None:
        self.reading.findings.append(self.given.finding(reference, self.key, about(self.key, message), hint))

    def read(self, kind: KeyKind, node: Node) -> Any:
        if kind is KeyKind.LIST:
            return self._list(node)
        if kind is KeyKind.RULES:
            return self._tree(node)
        if not isinstance(node, Scalar):
            raise _TypeMismatchError(f"must be one value ({kind.value}), not a {_shape(node)}")
        if kind in {KeyKind.INTEGER, KeyKind.BOOLEAN} and not isinstance(node.value, str):
            return node.value
        value = self._text(node)
        if kind is KeyKind.URL:
            self._refuse_signed(node.text)
        if kind is KeyKind.SECRET and self.given.source == "flag" and not self.variables:
            self.problem(
                "secret-on-command-line",
                "is a secret, and other users can read the command line",
                f"set {env_name(self.key)}, or name a variable: --set '{self.key}=${{VAR}}'",
            )
        return value or None

    def _list(self, node: Node) -> list[str] | None:
        if isinstance(node, Sequence):
            items = []
            for index, item in enumerate(node.items):
                if not isinstance(item, Scalar) or item.value is None:
                    raise _TypeMismatchError(f"must be a list of texts; entry {index} is not text")
                items.append(self._text(item))
                self._refuse_signed(item.text)
            return items
        if isinstance(node, Scalar) and isinstance(node.value, str):
            before = self.variables
            text = self._text(node)
            # Written out, a list in the file is a YAML list; only a variable cannot hold one.
            if self.given.source == "flag" or self.variables > before:
                for written in split_list(node.text):
                    self._refuse_signed(written)
                return split_list(text) or None
        raise _TypeMismatchError("must be a list", "write it like [first, second]")

    def _refuse_signed(self, text: str) -> None:
        """Refuse a URL of the command line with a secret written out in its query: it would be recorded with the job.

        ``text`` is as given, before substitution: what a ``${VAR}`` brings in is expanded, not recorded.
        """
        if self.given.source != "flag":
            return
        literal = [name for name, value in secret_parameters(text) if not expand(value, {}).variables]
        if literal:
            self.problem(
                "secret-on-command-line",
                f"has a secret in the query of its URL ({', '.join(literal)}), which would be recorded with the job",
                f"put it into the file, or name a variable: --set '{self.key}=https://…?{literal[0]}=${{VAR}}'",
            )

    def _tree(self, node: Node) -> Any:
        if isinstance(node, Mapping):
            return {name: self._tree(value) for name, value in node.entries.items()}
        if isinstance(node, Sequence):
            return [self._tree(item) for item in node.items]
        return self._text(node) if isinstance(node.value, str) else plain(node)

    def _text(self, node: Scalar) -> str:
        if isinstance(node.value, bool):
            raise _TypeMismatchError("must be text", "put the value in quotes")
        if self.given.source == "environment":
            return node.text
        expanded = expand(node.text, self.environ)
        self.variables += len(expanded.variables)
        self.reading.unset += [name for name in expanded.unset if name not in self.reading.unset]
        if expanded.malformed:
            self.problem(
                "variable-syntax",
                "holds ${ without the name of a variable and }",
                "write ${NAME}, or $${ for the two characters themselves",
            )
        return expanded.text


def _shape(node: Node) -> str:
    return "block" if isinstance(node, Mapping) else "list"
