"""Load the configuration, and find all errors at once. Flags override ``APP_*`` variables, and these the file.

Each source gives a flat table, key → value and origin. The tables are merged in the order of precedence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from config import rules
from config.deprecated import translate
from config.findings import ConfigError, Finding, of_pydantic
from config.models import PipelineConfig, keys, steps_of
from config.services import RULE_NAMES
from config.sources import VARIABLE, Given, read_environment, read_file, read_flags
from config.types import read_list, shown

_STEPS = "pipeline.enabled_steps"


@dataclass(frozen=True)
class LoadedConfig:
    """A valid configuration, its file, its warnings, and the source of each value that is not a default."""

    config: PipelineConfig
    path: Path
    warnings: tuple[Finding, ...]
    given: Mapping[str, Given] = field(repr=False)

    def effective(self) -> Iterator[tuple[str, str, str]]:
        """Yield every key, its value as text (secrets masked, empty if not set) and the source of the value."""
        for key in keys():
            one = self.given.get(key)
            unset = f" ({one.broken} is not set, and no enabled step needs it)" if one and one.broken else ""
            yield key, shown(attrgetter(key)(self.config)), one.where + unset if one else "default"


def load_config(
    path: str | os.PathLike[str], *, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> LoadedConfig:
    """Return the configuration. ``overrides`` are texts of ``--set``. Raises ``ConfigError`` with every finding."""
    environ = os.environ if environ is None else environ
    findings: list[Finding] = []
    given = {
        **dict(read_file(Path(path), findings)),
        **dict(read_environment(environ, findings)),
        **dict(read_flags(overrides, findings)),
    }
    steps = _steps(given.get(_STEPS), environ)
    table = dict(_expanded(given, steps or (), environ, findings))
    findings += translate(table)
    values = {key: one.value for key, one in table.items() if not one.broken}
    config = None
    try:
        config = PipelineConfig.model_validate(_nested(values), by_alias=False, by_name=True)
    except ValidationError as error:
        findings += of_pydantic(error, RULE_NAMES)
    findings += rules.check(table.keys(), values, steps)
    if config is not None:
        findings += [*rules.check_files(config), *rules.check_parts(config), *rules.warnings(config)]
    findings = [_located(finding, table) for finding in findings]
    if config is None or any(finding.level == "error" for finding in findings):
        raise ConfigError(findings)
    return LoadedConfig(config, Path(path), tuple(findings), table)


def _steps(given: Given | None, environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the enabled steps, or ``None`` for a list that cannot be used. They decide which variables must be set."""
    value, unset = _expand(given, environ) if given is not None else (None, [])
    try:
        items = read_list(value or "")
    except PydanticCustomError:
        return None
    return tuple(str(item) for item in items) if isinstance(items, list) and not unset else None


def _expanded(
    given: Mapping[str, Given], steps: Sequence[str], environ: Mapping[str, str], findings: list[Finding]
) -> Iterator[tuple[str, Given]]:
    """Yield the keys that are set, with ``${VAR}`` replaced. Variables of a step that is not enabled may be missing."""
    for key, one in given.items():
        value, unset = _expand(one, environ)
        if not unset and value in (None, ""):
            continue
        is_needed = not steps_of(key) or not set(steps_of(key)).isdisjoint(steps)
        for name in unset:
            if name == "${":
                message, hint = "${ is not followed by the name of a variable and }", "write $${ for a literal ${"
                findings.append(Finding("variable-syntax", key, message, hint, where=one.where))
            elif is_needed:
                message, hint = f"the environment variable {name} is not set", f"set {name}, or write $${{ for ${{"
                findings.append(Finding("unset-variable", key, message, hint, where=one.where))
        yield key, replace(one, value=value, broken=", ".join(unset))


def _expand(given: Given, environ: Mapping[str, str]) -> tuple[Any, list[str]]:
    """Return a value with every ``${VAR}`` replaced in one pass, and the names of those that are not set."""
    unset: dict[str, None] = {}

    def replacement(match: re.Match[str]) -> str:
        if match[0] != "$${" and match[1] not in environ:
            unset[match[1] or "${"] = None
        return "${" if match[0] == "$${" else environ.get(match[1], "")

    def inside(value: Any) -> Any:
        if isinstance(value, list):
            return [inside(one) for one in value]
        if isinstance(value, dict):
            return {name: inside(one) for name, one in value.items()}
        return VARIABLE.sub(replacement, value) if isinstance(value, str) else value

    return given.value if given.literal else inside(given.value), list(unset)


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for key, value in values.items():
        *parents, name = key.split(".")
        block = root
        for parent in parents:
            block = block.setdefault(parent, {})
        block[name] = value
    return root


def _located(finding: Finding, table: Mapping[str, Given]) -> Finding:
    """Return a finding with the source of its value, or of the first value in its block."""
    same = (key for key in table if f"{finding.key}.".startswith((f"{key}.", f"{key}[")))
    below = (key for key in table if key.startswith(f"{finding.key}."))
    key = next(chain(same, below), None)
    return finding if finding.where or key is None else replace(finding, where=table[key].where)
