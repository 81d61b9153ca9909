"""Every key of the configuration, derived from the models: path, type, default, range, environment name.

Nothing here is written down twice: the environment source, the schema, the reference page and the example's test
all read this list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from config.duration import format_duration
from config.fields import Choices, ConfigBlock, KeyKind, RootUrl, nearest
from config.model import PipelineConfig
from config.services import SHORTEST
from config.steps import STEPS

ENV_PREFIX = "APP_"


@dataclass(frozen=True)
class KeyInfo:
    """One key. ``steps`` are the steps it belongs to; empty when every run uses it."""

    key: str
    kind: KeyKind
    default: Any
    example: Any
    description: str
    minimum: int | timedelta | None
    maximum: int | None
    choices: tuple[str, ...]
    steps: frozenset[str]

    @property
    def env(self) -> str:
        """Return the name of its environment variable."""
        return env_name(self.key)

    @property
    def secret(self) -> bool:
        """Return whether its value must never be shown."""
        return self.kind is KeyKind.SECRET

    @property
    def default_text(self) -> str:
        """Return the default as written in a file; empty if there is none."""
        return show(self.default)

    @property
    def example_text(self) -> str:
        """Return a value as written in a file: the example of the model, a variable for a secret, or the default."""
        if self.example is not None:
            return show(self.example)
        if self.secret:
            name = self.key.removeprefix("services.").replace(".auth.", ".").replace(".oauth_", ".")
            return f"${{{name.replace('.', '_').upper()}}}"
        return self.default_text

    @property
    def range_text(self) -> str:
        """Return the bounds of its values as a predicate; empty if there are none."""
        if self.minimum == SHORTEST:
            return "must be longer than zero"
        lowest = show(self.minimum)
        if self.maximum is not None:
            return f"must be between {lowest} and {self.maximum}"
        return f"must be at least {lowest}" if lowest else ""


def env_name(key: str) -> str:
    """``APP_`` and the path, uppercased, each ``.`` replaced by ``_`` (document 1, "Conventions")."""
    return ENV_PREFIX + key.upper().replace(".", "_")


def show(value: Any) -> str:
    """Return a value as written in a file, on one line; secrets are masked, queries of URLs left out."""
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, Path):
        # "./jobs" rather than "jobs", as document 1 writes it: one sees that it starts at the working directory.
        return str(value) if value.is_absolute() or str(value).startswith(".") else f"./{value}"
    if isinstance(value, tuple):
        if isinstance(value[0], ConfigBlock):
            return f"{len(value)} rule{'s' if len(value) > 1 else ''}"
        return "[" + ", ".join(show(item) for item in value) + "]"
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return value.partition("?")[0]
    return str(value)


@cache
def described() -> tuple[KeyInfo | tuple[str, type[ConfigBlock]], ...]:
    """Return every block, as its path and model, and every key, in the order of the documentation."""
    return tuple(_walk(PipelineConfig, ""))


@cache
def describe_keys() -> tuple[KeyInfo, ...]:
    """Return every key, in the order of the documentation."""
    return tuple(entry for entry in described() if isinstance(entry, KeyInfo))


@cache
def keys_by_name() -> dict[str, KeyInfo]:
    """Return every key by its dotted path."""
    return {info.key: info for info in describe_keys()}


@cache
def blocks() -> dict[str, type[ConfigBlock]]:
    """Return every block by its dotted path; the root is the empty path."""
    return dict(entry for entry in described() if not isinstance(entry, KeyInfo))


@cache
def root_urls() -> frozenset[str]:
    """Return the keys that take the root of a server, to which the client appends ``/fhir``."""
    return frozenset(
        f"{path}.{name}"
        for path, model in blocks().items()
        for name, field in model.model_fields.items()
        if RootUrl in get_args(field.annotation)
    )


def suggest(key: str, older: Mapping[str, str] | None = None) -> str:
    """Return a hint for an unknown path: the nearest key, or the keys of the block.

    Nearest is a key of the same block with a like name; then a key of that name elsewhere, those that share most blocks
    with ``key`` first; then one of a like name elsewhere. Never a block that ``key`` is in: it is there already.
    """
    block, _, name = key.rpartition(".")
    if spelled := meant(key, older):
        return f"did you mean {spelled}?"
    known = [*keys_by_name(), *(path for path in blocks() if path)]
    siblings = {_name(path): path for path in known if path.rpartition(".")[0] == block}
    elsewhere = [path for path in known if not f"{key}.".startswith(f"{path}.")]
    names = [name] if any(_name(path) == name for path in elsewhere) else [nearest(name, [*map(_name, elsewhere)])]
    like = [path for path in elsewhere if _name(path) in names]
    closest = max((_shared(path, key) for path in like), default=0)
    like = [path for path in like if _shared(path, key) == closest]
    if like:
        return f"did you mean {like[0]}?" if len(like) == 1 else f"{_name(like[0])} is a key of {_owners(like)}"
    top = dict.fromkeys(path.partition(".")[0] for path in known)
    return f"known here: {', '.join(siblings)}" if siblings else f"known at the top: {', '.join(top)}"


def meant(key: str, older: Mapping[str, str] | None = None) -> str | None:
    """Return the block or key that a misspelled path means, if each of its names is near to one that exists there.

    ``older`` are paths of older files, and those of today that they became.
    """
    found = ""
    for name in key.split("."):
        known = dict(older or {}) | {path: path for path in (*keys_by_name(), *blocks()) if path}
        names = {_name(path): new for path, new in known.items() if path.rpartition(".")[0] == found}
        near = name if name in names else nearest(name, list(names))
        if near is None:
            return None
        found = names[near]
    return found


def _name(path: str) -> str:
    return path.rpartition(".")[2]


def _shared(path: str, key: str) -> int:
    """Return the number of leading blocks that two paths share."""
    pairs = zip(path.split(".")[:-1], key.split(".")[:-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def suggest_variable(name: str, known: list[str]) -> str | None:
    """Return a hint for an ``APP_`` variable that names no key."""
    near = nearest(name, [env.lower() for env in known])
    return f"did you mean {near.upper()}?" if near else None


def _owners(paths: list[str]) -> str:
    return ", ".join(path.rpartition(".")[0] or "the top level" for path in paths)


def _walk(model: type[ConfigBlock], path: str) -> Iterator[KeyInfo | tuple[str, type[ConfigBlock]]]:
    """Yield a block, its keys and the blocks below it: the one walk over the models."""
    yield path, model
    for name, field in model.model_fields.items():
        key = f"{path}.{name}".lstrip(".")
        if isinstance(field.annotation, type) and issubclass(field.annotation, ConfigBlock):
            yield from _walk(field.annotation, key)
        else:
            yield _describe(key, field)


def _describe(key: str, field: FieldInfo) -> KeyInfo:
    kind, inner = _kind(field)
    lowest = next((m.ge for m in field.metadata if isinstance(m, annotated_types.Ge)), None)
    highest = next((m.le for m in field.metadata if isinstance(m, annotated_types.Le)), None)
    return KeyInfo(
        key=key,
        kind=kind,
        default=field.get_default(call_default_factory=False),
        example=field.examples[0] if field.examples else None,
        description=field.description or "",
        minimum=lowest if isinstance(lowest, int | timedelta) else None,
        maximum=highest if isinstance(highest, int) else None,
        choices=_choices(inner),
        steps=_steps(key),
    )


def _kind(field: FieldInfo) -> tuple[KeyKind, Any]:
    """Return the kind marker of a field and the type it marks: beside the annotation, or inside ``… | None``."""
    for marker in field.metadata:
        if isinstance(marker, KeyKind):
            return marker, field.annotation
    for argument in get_args(field.annotation):
        if get_origin(argument) is Annotated:
            for marker in get_args(argument)[1:]:
                if isinstance(marker, KeyKind):
                    return marker, get_args(argument)[0]
    raise TypeError(f"a key without a kind: {field.annotation}")


def _choices(annotation: Any) -> tuple[str, ...]:
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return tuple(annotation)
    if isinstance(annotation, Choices):
        return annotation.names
    return next((found for argument in get_args(annotation) if (found := _choices(argument))), ())


def _steps(key: str) -> frozenset[str]:
    """Return the steps a key belongs to: those of its service block (``4-product.md`` §3, unset variables)."""
    top, _, rest = key.partition(".")
    if top != "services":
        return frozenset()
    service = rest.partition(".")[0]
    if service == "crtdl_preprocessing":  # it prepares the CRTDL for the steps that read one
        return frozenset(name for name, step in STEPS.items() if step.needs_crtdl)
    return frozenset({service})
