"""Read and check the anonymization file (docs/services.md).

The service gets its bytes unchanged. The step only checks whether the file can be used, whether a ``remove`` rule may
remove entries, and whether a key is missing, so that pseudonyms may differ between requests. The file can hold secret
keys, so no message quotes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tasks.shared.errors import InputError

KEY: Final = "services.pseudonymizer.anonymization_config"

_NEEDS: Final = {
    "dateshift": ("dateShift", ("dateShiftKey", "dateShiftFixedOffsetInDays")),
    "cryptohash": ("cryptoHash", ("cryptoHashKey", "keyDerivationContext")),
    "encrypt": ("encrypt", ("encryptKey", "keyDerivationContext")),
}
"""Method in lower case (the service ignores case) → its name, and the parameters of which it needs one."""


@dataclass(frozen=True)
class AnonymizationRules:
    """An anonymization file: its bytes, its SHA-256 (hex), and the results of the checks.

    ``removes``: a ``remove`` rule may remove entries. ``keys`` are the values of parameters that are secret.
    """

    content: bytes = field(repr=False)
    digest: str = field(repr=False)
    removes: bool = False
    warnings: tuple[str, ...] = ()
    keys: tuple[str, ...] = field(default=(), repr=False)


def read_rules(path: Path) -> AnonymizationRules:
    """Read the anonymization file. Raises ``InputError``: ``file-unreadable``, ``file-empty``, ``rules-not-yaml``."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe may block
            raise InputError("file-unreadable", "the rule file is not a regular file", context=f"{KEY}: {path}")
        content = path.read_bytes()
    except OSError as error:
        what = f"the anonymization file cannot be read: {error.strerror or type(error).__name__}"
        hint = "check the path; a relative one starts at the working directory"
        raise InputError("file-unreadable", what, context=f"{KEY}: {path}", hint=hint) from None
    document = _parse(content, path)
    if document is None:
        hint = "give the correct file, or leave out the key: the service then uses its own rules"
        raise InputError("file-empty", "the anonymization file is empty", context=f"{KEY}: {path}", hint=hint)
    rules = document.get("fhirPathRules") if isinstance(document, Mapping) else None
    if not isinstance(rules, list) or not rules:
        # Another file by mistake (the pipeline's own, with its secrets) must not go out with every request.
        raise _not_rules(path, "it has no list fhirPathRules with rules in it")
    methods = {str(rule.get("method")).strip().lower() for rule in rules if isinstance(rule, Mapping)}
    given = document.get("parameters")
    parameters = given if isinstance(given, Mapping) else {}
    return AnonymizationRules(
        content=content,
        digest=hashlib.sha256(content).hexdigest(),
        removes="remove" in methods,
        warnings=tuple(_warnings(methods, parameters)),
        keys=tuple(v for k, v in parameters.items() if isinstance(v, str) and str(k).lower().endswith("key")),
    )


def _parse(content: bytes, path: Path) -> Any:
    try:
        return yaml.safe_load(content)
    except yaml.MarkedYAMLError as error:  # its text quotes the file
        line = f"near line {error.problem_mark.line + 1}" if error.problem_mark else "somewhere"
        raise _not_rules(path, f"it is not YAML {line}") from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise _not_rules(path, "it is not YAML") from None


def _not_rules(path: Path, what: str) -> InputError:
    hint = "give a YAML file with fhirPathRules and parameters"
    message = f"the anonymization file cannot be used: {what}"
    return InputError("rules-not-yaml", message, context=f"{KEY}: {path}", hint=hint)


def _warnings(methods: set[str], parameters: Mapping[Any, Any]) -> Iterator[str]:
    for method, (name, keys) in _NEEDS.items():
        if method in methods and all(parameters.get(key) in (None, "") for key in keys):
            yield (
                f"the anonymization file has a rule with {name}, but neither parameters.{keys[0]} nor "
                f"parameters.{keys[1]}: the service may use a key that changes between requests"
            )
