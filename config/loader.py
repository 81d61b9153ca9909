"""From the sources to a checked configuration: merge, translate old keys, read, validate, apply the rules.

Everything that is wrong is collected on the way and raised once (``4-product.md`` §3).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from config.deprecated import DEPRECATED, EXTRACTOR, OLDER_PREFIX, DeprecatedKey
from config.fields import KeyKind, read_integer
from config.findings import ConfigError, Finding, about, translate
from config.keys import blocks, describe_keys, keys_by_name, show
from config.model import PipelineConfig, read_step
from config.rules import RuleFacts, check
from config.services import AttributeToAdd, CreateGroup, EnrichmentRule
from config.sources import GivenValue, Layer, read_environment, read_file, read_overrides
from config.values import Reading, read_value

MASK = "********"

_STEPS = "pipeline.enabled_steps"
_RULE_NAMES = tuple(name for model in (EnrichmentRule, CreateGroup, AttributeToAdd) for name in model.model_fields)


@dataclass(frozen=True)
class Effective:
    """One key as it is in force: its value as text (secrets masked, empty when not set) and where it came from."""

    key: str
    value: str
    source: str


@dataclass(frozen=True)
class LoadedConfig:
    """A valid configuration, the file it was read from, and what is worth a warning."""

    config: PipelineConfig
    path: Path
    warnings: tuple[Finding, ...]
    sources: Mapping[str, str] = field(repr=False)

    def effective(self) -> list[Effective]:
        """Return every key, in the order of the documentation."""
        return [
            Effective(
                info.key,
                _shown(self._value(info.key), secret=info.secret),
                self.sources.get(info.key, "default"),
            )
            for info in describe_keys()
        ]

    def unreadable(self) -> Iterator[Finding]:
        """Yield a finding for each file and directory that an enabled step reads and that cannot be read.

        Only ``config check`` asks, since a job that is complete needs none. A missing directory is a warning, since
        ``--dir`` may name another one.
        """
        enabled = set(self.config.pipeline.enabled_steps)
        for info in describe_keys():
            path = self._value(info.key) if info.kind is KeyKind.PATH and not enabled.isdisjoint(info.steps) else None
            is_right = os.path.isdir if info.key.endswith(".dir") else os.path.isfile
            if path is None or (is_right(path) and os.access(path, os.R_OK)):
                continue
            there = os.path.lexists(path)
            reference = "file-unreadable" if there else "file-not-found"
            message = about(info.key, f"names a path that {'cannot be read' if there else 'does not exist'}")
            hint = (
                "check what it is, and its permissions" if there else "a relative path starts at the working directory"
            )
            level: Literal["error", "warning"] = "warning" if info.key.endswith(".dir") else "error"
            yield Finding(reference, info.key, message, hint, level, where=self.sources.get(info.key))

    def _value(self, key: str) -> Any:
        value: Any = self.config
        for name in key.split("."):
            value = getattr(value, name)
        return value


def load_config(
    path: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Load the configuration from flags, environment, file and defaults, in this order of precedence.

    ``overrides`` are ``KEY=VALUE`` texts as ``--set`` takes them; ``environ`` is the process's environment unless
    given. Raises ``ConfigError`` with every error that can be found.
    """
    environ = os.environ if environ is None else environ
    path = Path(path)
    flags = read_overrides(overrides)
    variables = (read_environment(environ), read_environment(environ, OLDER_PREFIX))
    return _Loading([flags, *variables, read_file(path)], environ, path).run()


class _Loading:
    """One load: the merged values and what was found so far."""

    def __init__(self, layers: Sequence[Layer], environ: Mapping[str, str], path: Path) -> None:
        self.environ = environ
        self.path = path
        self.findings = [finding for layer in reversed(layers) for finding in layer.findings]
        self.blocks = layers[-1].blocks
        self.replaced = [pair for layer in layers for pair in layer.replaced]
        # Where a source was too broken to say anything, nothing can be said about its keys either.
        self.given, self.unknown = _merge(layers)
        self.old: dict[str, str] = {}  # today's key → the deprecated one that its value was written with
        self.values: dict[str, Any] = {}
        self.skipped: dict[str, str] = {}
        self.steps: tuple[str | None, ...] | None = None

    def run(self) -> LoadedConfig:
        # Which variables must be set depends on the steps, so these are read first.
        self._read(_STEPS)
        self.steps = self._known_steps()
        self._translate_deprecated()
        self._refuse_replaced_secrets()
        for key in self.given:
            if key not in self.values and key not in self.unknown:
                self._read(key)
        config = self._validate()
        facts = RuleFacts(
            config,
            present=frozenset(self.values) | (self.unknown & self.given.keys() - self.skipped.keys()),
            unknown=frozenset(self.unknown),
            steps=self.steps,
        )
        self.findings += [self._located(finding) for finding in check(facts)]
        loaded = LoadedConfig(config, self.path, tuple(self.findings), self._sources())
        if any(finding.level == "error" for finding in self.findings):
            known = tuple(step for step in self.steps or () if step is not None)
            block = config.pipeline.model_copy(update={"enabled_steps": known})
            partial = replace(loaded, config=config.model_copy(update={"pipeline": block}))
            # Errors before warnings.
            raise ConfigError(sorted(self.findings, key=lambda finding: finding.level), partial=partial)
        return loaded

    # --- deprecated keys ---

    def _translate_deprecated(self) -> None:
        old_keys = [DEPRECATED[key] for key in self.given if key in DEPRECATED]
        self._refuse_flat_and_block([old for old in old_keys if old.flat_auth])
        for old in old_keys:
            given = self.given.pop(old.key)
            if old.replacement in self.given and not old.flat_auth:
                message = about(old.key, f"is an older form of {old.replacement}, which is set too")
                self._add("deprecated-and-current", old.key, message, "remove the older one", given)
                continue
            self._warn(old, given)
            if old.replacement is None or old.unit is not None:
                self._read_number(old, given)
            elif old.replacement not in self.given:
                self.given[old.replacement] = given
                self.old[old.replacement] = old.key

    def _refuse_flat_and_block(self, flat: Sequence[DeprecatedKey]) -> None:
        block = f"{EXTRACTOR}.auth"
        both = [key for key in self.given if key.startswith(f"{block}.")]
        if flat and both:
            names = ", ".join(old.key.rpartition(".")[2] for old in flat)
            message = f"the auth block is used together with the deprecated flat keys ({names})"
            self._add("auth-flat-and-block", block, message, "move them all into the auth block", self.given[both[0]])

    def _warn(self, old: DeprecatedKey, given: GivenValue) -> None:
        if old.replacement is None:
            hint = f"remove it: {old.why}"
        elif old.unit is not None:
            hint = f"use {old.replacement}, a duration like {'PT30M' if old.unit.seconds == 60 else 'PT5S'}"
        else:
            hint = f"use {old.replacement}; a later major version removes the old key"
        self._add("deprecated-key", old.key, about(old.key, "is deprecated"), hint, given, "warning")

    def _read_number(self, old: DeprecatedKey, given: GivenValue) -> None:
        reading = read_value(old.key, given, self.environ)
        if not self._accept(old.key, reading, given) or reading.value is None:
            if old.replacement:
                self.unknown.add(old.replacement)
            return
        try:
            number = read_integer(reading.value)
        except PydanticCustomError as error:
            context = error.context or {}
            self._add(error.type, old.key, about(old.key, context["message"]), None, given)
            if old.replacement:
                self.unknown.add(old.replacement)
            return
        if old.replacement is None and number < 0:
            self._add("out-of-range", old.key, about(old.key, "must be at least 0"), None, given)
        if old.replacement and old.unit:
            self.values[old.replacement] = number * old.unit
            self.given[old.replacement] = given
            self.old[old.replacement] = old.key

    # --- reading ---

    def _refuse_replaced_secrets(self) -> None:
        """Refuse a secret on the command line even if a later flag for the same key replaces it."""
        for key, given in self.replaced:
            found = read_value(key, given, self.environ).findings
            self.findings += [finding for finding in found if finding.reference == "secret-on-command-line"]

    def _read(self, key: str) -> None:
        given = self.given.get(key)
        if given is None:
            return
        reading = read_value(self.old.get(key, key), given, self.environ)
        if self._accept(key, reading, given) and reading.value is not None:
            self.values[key] = reading.value

    def _accept(self, key: str, reading: Reading, given: GivenValue) -> bool:
        """Take over what reading a key found; whether its value is usable."""
        self.findings += reading.findings
        if reading.unset and self._belongs_to_a_disabled_step(key):
            self.unknown.add(key)
            self.skipped[key] = ", ".join(reading.unset)
            return False
        for name in reading.unset:
            message = f"the environment variable {name} is not set"
            hint = f"set {name}, or write $${{ for a literal ${{"
            self._add("unset-variable", self.old.get(key, key), message, hint, given)
        if reading.findings or reading.unset:
            self.unknown.add(key)
            return False
        return True

    def _belongs_to_a_disabled_step(self, key: str) -> bool:
        steps = keys_by_name()[key].steps if key in keys_by_name() else frozenset()
        if key in DEPRECATED and (replacement := DEPRECATED[key].replacement):
            steps = keys_by_name()[replacement].steps
        return bool(steps) and steps.isdisjoint(self.steps or ())

    def _known_steps(self) -> tuple[str | None, ...] | None:
        """Return the step list as far as it can be read: one bad name must not hide findings about the others."""
        names = self.values.get(_STEPS)
        if not isinstance(names, list):
            return None
        return tuple(_step_or_none(name) for name in names)

    # --- validation ---

    def _validate(self) -> PipelineConfig:
        values = dict(self.values)
        while True:
            try:
                return PipelineConfig.model_validate(_nested(values))
            except ValidationError as error:
                for problem in translate(error, _RULE_NAMES):
                    key = _leaf(problem.key)
                    if problem.reference == "url-ends-in-fhir" and (given := self.given.get(key)) and given.older:
                        values[key] = str(values[key]).rstrip("/")[: -len("/fhir")]
                        message = about(key, "ends in /fhir, which is removed: the client appends it")
                        self._add(problem.reference, key, message, problem.hint, given, "warning")
                        continue
                    values.pop(key, None)
                    self.unknown.add(key)
                    shown = problem.key.replace(key, self.old.get(key, key), 1)
                    message = about(shown, problem.message or keys_by_name()[key].range_text)
                    self._add(problem.reference, shown, message, problem.hint, self.given.get(key))

    # --- findings and sources ---

    def _add(
        self,
        reference: str,
        key: str,
        message: str,
        hint: str | None,
        given: GivenValue | None,
        level: Literal["error", "warning"] = "error",
    ) -> None:
        finding = Finding(reference, key, message, hint, level)
        self.findings.append(finding if given is None else given.finding(reference, key, message, hint, level))

    def _located(self, finding: Finding) -> Finding:
        """Return the finding with the origin of its value, if one source gives that value."""
        given = self.given.get(_leaf(finding.key)) or self.blocks.get(finding.key)
        return finding if finding.where or given is None else replace(finding, line=given.line, where=given.where)

    def _sources(self) -> dict[str, str]:
        sources = {}
        for key, given in self.given.items():
            note = f" ({self.old[key]})" if key in self.old else ""
            if key in self.skipped:
                note = f" ({self.skipped[key]} is not set, and no enabled step needs it)"
            elif key not in self.values:
                continue  # it says nothing, so the default holds
            sources[key] = given.label + note
        return sources


def _merge(layers: Sequence[Layer]) -> tuple[dict[str, GivenValue], set[str]]:
    """Merge the layers: the first one with a key wins; a key that it explicitly unsets is unset.

    The second result are the keys whose highest source is broken there.
    """
    merged: dict[str, GivenValue] = {}
    broken: set[str] = set()
    for layer in layers:
        broken |= layer.broken - merged.keys()
        for key, given in layer.values.items():
            if key not in broken:
                merged.setdefault(key, given)
    order = {key: position for position, key in enumerate((*keys_by_name(), *DEPRECATED))}
    present = {key: given for key, given in merged.items() if not given.unset}
    return dict(sorted(present.items(), key=lambda item: order[item[0]])), broken


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for key, value in values.items():
        *parents, name = key.split(".")
        block = root
        for parent in parents:
            block = block.setdefault(parent, {})
        block[name] = value
    return root


def _leaf(path: str) -> str:
    """Return the key that a path below it belongs to (``a.b[0].c`` → ``a.b``)."""
    known = path.partition("[")[0]
    while known and known not in keys_by_name() and known not in blocks():
        known = known.rpartition(".")[0]
    return known


def _step_or_none(name: Any) -> str | None:
    try:
        return read_step(name)
    except PydanticCustomError:
        return None


def _shown(value: Any, *, secret: bool) -> str:
    return MASK if secret and value is not None else show(value)
