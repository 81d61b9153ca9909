"""The rule file: the YAML format of the deployed service, validated (document 3 §4).

``fhirVersion`` (R4), ``fhirPathRules`` (a list of ``path``, ``method`` and the method's settings) and ``parameters``.
Method names are case-insensitive. Unknown settings of a rule are ignored, as in the deployed service; other unknown
keys are errors, as there.

Rules that cannot be applied exactly are errors too: a rule that is silently ignored would let data through.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from deployments.sandbox.pseudonymization.problem import RuleFileError


class MethodName(StrEnum):
    """The supported methods."""

    REDACT = "redact"
    KEEP = "keep"
    REMOVE = "remove"
    CRYPTO_HASH = "cryptoHash"
    DATE_SHIFT = "dateShift"
    SUBSTITUTE = "substitute"
    GENERALIZE = "generalize"
    PSEUDONYMIZE = "pseudonymize"


class DateShiftScope(StrEnum):
    """Scope of an offset. An HTTP request has neither file nor folder, so all three mean the sent resource."""

    RESOURCE = "resource"
    FILE = "file"
    FOLDER = "folder"


_METHODS = {name.value.lower(): name for name in MethodName}
_REFUSED = frozenset({"encrypt", "perturb"})
"""Methods of the deployed service that the sandbox does not support."""


def _method(value: object) -> object:
    text = str(value)
    if text.lower() in _REFUSED:
        raise ValueError(f"the method {text} is not supported by the sandbox")
    if text.lower() not in _METHODS:
        raise ValueError(f"unknown method {text!r}; known are {', '.join(MethodName)}")
    return _METHODS[text.lower()]


def _scope(value: object) -> object:
    return str(value).lower()


def _empty_is_absent(value: object) -> object:
    return None if value == "" else value


Key = Annotated[str | None, BeforeValidator(_empty_is_absent), Field(repr=False)]


class AnonymizationRule(BaseModel):
    """One rule: path, method and settings."""

    model_config = ConfigDict(extra="allow", frozen=True)

    path: str
    method: Annotated[MethodName, BeforeValidator(_method)]

    def setting(self, *names: str) -> Any:
        """Return the first of these settings that the rule has, or None."""
        extra = self.model_extra or {}
        return next((extra[name] for name in names if name in extra), None)

    def has(self, name: str) -> bool:
        """Return True if the rule has that setting, even if empty."""
        return name in (self.model_extra or {})


class RuleParameters(BaseModel):
    """Keys and switches for the methods."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, hide_input_in_errors=True
    )

    date_shift_key: Key = None
    date_shift_scope: Annotated[DateShiftScope, BeforeValidator(_scope)] = DateShiftScope.RESOURCE
    date_shift_fixed_offset_in_days: Annotated[int | None, BeforeValidator(_empty_is_absent)] = None
    crypto_hash_key: Key = None
    crypto_hash_algorithm: str = "HmacSha256"
    encrypt_key: Key = None
    key_derivation_context: Annotated[str | None, BeforeValidator(_empty_is_absent)] = None
    enable_partial_ages_for_redact: bool = False
    enable_partial_dates_for_redact: bool = False
    enable_partial_zip_codes_for_redact: bool = False
    restricted_zip_code_tabulation_areas: tuple[str, ...] = ()


class RuleFile(BaseModel):
    """A rule file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, hide_input_in_errors=True
    )

    fhir_version: str = "R4"
    fhir_path_rules: tuple[AnonymizationRule, ...]
    parameters: Annotated[RuleParameters, BeforeValidator(lambda given: given or {})] = RuleParameters()


def read_rule_file(content: bytes) -> RuleFile:
    """Read a rule file. Raises ``RuleFileError`` with the location of the error, never the content."""
    try:
        # BaseLoader builds plain strings, lists and mappings only: nothing is executed, and keys such as
        # 0123 are not converted.
        document = yaml.load(content, Loader=yaml.BaseLoader)  # noqa: S506 - see above
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise RuleFileError(f"this is not YAML{where}") from None
    if not isinstance(document, dict):
        raise RuleFileError("this is not a mapping with fhirPathRules")
    try:
        rules = RuleFile.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RuleFileError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None
    if rules.fhir_version.upper() != "R4":
        raise RuleFileError("fhirVersion: only R4 is supported")
    if rules.parameters.crypto_hash_algorithm.lower() != "hmacsha256":
        raise RuleFileError("parameters.cryptoHashAlgorithm: the sandbox supports only HmacSha256")
    return rules
