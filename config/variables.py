"""``${VAR}`` in the strings of the file and of ``--set``: braced form only, ``$${`` writes a literal ``${``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

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


def expand(text: str, environ: Mapping[str, str]) -> Expanded:
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
