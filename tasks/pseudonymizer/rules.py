"""The anonymization file (document 1, ``services.pseudonymizer.anonymization_config``): what the step must know of it.

The file goes to the service as its bytes are. It is read here for three things only: whether it can be sent at all,
whether a ``remove`` rule may make entries fewer, and whether a key is missing without which pseudonyms may differ from
request to request (document 3 §4). It can hold keys: no message quotes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tasks.shared.errors import InputError, SluiceError
from tasks.shared.files.named_file import file_findings

KEY: Final = "services.pseudonymizer.anonymization_config"

_DATE_SHIFT_KEYS: Final = ("dateShiftKey", "dateShiftFixedOffsetInDays")
_KEYED: Final = {"cryptohash": ("cryptoHash", "cryptoHashKey"), "encrypt": ("encrypt", "encryptKey")}
_DERIVED: Final = "keyDerivationContext"


@dataclass(frozen=True)
class AnonymizationRules:
    """An anonymization file: its bytes, its SHA-256 (hex), and what was found in it.

    ``removes`` says that entries may disappear, because there is a ``remove`` rule. ``keys`` are the values of its
    parameters that are secrets.
    """

    content: bytes = field(repr=False)
    digest: str = field(repr=False)
    removes: bool = False
    warnings: tuple[str, ...] = ()
    keys: tuple[str, ...] = field(default=(), repr=False)


def read_rules(path: Path) -> AnonymizationRules:
    """Read the anonymization file. Raises ``InputError``: ``file-unreadable``, ``file-empty``, ``rules-not-yaml``."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            "file-unreadable",
            f"the anonymization file cannot be read ({type(error).__name__})",
            context=f"{KEY}: {path}",
            hint="check the path and its permissions",
        ) from None
    document = _parse(content, path)
    if document is None:
        raise InputError(
            "file-empty",
            "the anonymization file is empty",
            context=f"{KEY}: {path}",
            hint="give the correct file, or leave out the key: the service then uses its own rules",
        )
    if not isinstance(document, Mapping):
        raise _not_rules(path, "it is not a mapping of keys")
    rules = document.get("fhirPathRules")
    if not isinstance(rules, list) or not rules:
        # Another file by mistake (the pipeline's own, with its secrets) must not go out with every request.
        raise _not_rules(path, "it has no list fhirPathRules with rules in it")
    methods = set(_methods(rules))
    return AnonymizationRules(
        content=content,
        digest=hashlib.sha256(content).hexdigest(),
        removes="remove" in methods,
        warnings=tuple(_warnings(methods, document.get("parameters"))),
        keys=tuple(_keys(document.get("parameters"))),
    )


def usable_rules(path: Path | None) -> AnonymizationRules | None:
    """Return the anonymization file, or ``None`` if there is none or it has errors (``step.py``)."""
    if path is None or list(file_findings("", path)):
        return None
    with suppress(SluiceError):
        return read_rules(path)
    return None


def _parse(content: bytes, path: Path) -> Any:
    try:
        return yaml.safe_load(content)
    except yaml.MarkedYAMLError as error:  # its text quotes the file
        line = f"near line {error.problem_mark.line + 1}" if error.problem_mark else "somewhere"
        raise _not_rules(path, f"it is not YAML {line}") from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise _not_rules(path, "it is not YAML") from None


def _not_rules(path: Path, what: str) -> InputError:
    return InputError(
        "rules-not-yaml",
        f"the anonymization file cannot be used: {what}",
        context=f"{KEY}: {path}",
        hint="give a YAML file with fhirPathRules and parameters",
    )


def _methods(rules: Iterable[Any]) -> Iterator[str]:
    """Yield the methods of all rules in lower case, because the service ignores case."""
    for rule in rules:
        if isinstance(rule, Mapping) and isinstance(rule.get("method"), str):
            yield rule["method"].strip().lower()


def _keys(parameters: Any) -> Iterator[str]:
    """``cryptoHashKey``, ``dateShiftKey``, ``encryptKey`` and whatever other key there is."""
    for name, value in parameters.items() if isinstance(parameters, Mapping) else ():
        if isinstance(value, str) and str(name).lower().endswith("key"):
            yield value


def _warnings(methods: set[str], parameters: Any) -> Iterator[str]:
    given = parameters if isinstance(parameters, Mapping) else {}

    def missing(*keys: str) -> bool:
        return all(given.get(key) in (None, "") for key in keys)

    change = "the service may use a key that changes between requests"
    if "dateshift" in methods and missing(*_DATE_SHIFT_KEYS):
        yield (
            "the anonymization file has a dateShift rule, but neither parameters.dateShiftKey nor "
            f"parameters.dateShiftFixedOffsetInDays: {change}"
        )
    for method, (name, key) in _KEYED.items():
        if method in methods and missing(key, _DERIVED):
            yield (
                f"the anonymization file has a rule with {name}, but neither parameters.{key} nor "
                f"parameters.{_DERIVED}: {change}"
            )
