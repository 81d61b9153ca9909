"""The enrichment rules that apply: inline ones, or those of the external JSON file (document 1, crtdl_preprocessing).

The file has camelCase names. ``linkedGroups`` is read there too, though document 1 lists it for the inline form only:
both describe the same rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from config.fields import Boolean, ConfigBlock, FilledText, problem
from config.findings import ConfigError, Finding, translate
from config.services import AttributeToAdd, CreateGroup, CrtdlPreprocessingConfig, EnrichmentRule

KEY = "services.crtdl_preprocessing.enrichments_path"

LARGEST_FILE = 16 * 1024 * 1024

# Few runs have such a file: what reads it is built when the first one is read.
_CAMEL = ConfigDict(alias_generator=to_camel, defer_build=True)


def enrichment_rules(config: CrtdlPreprocessingConfig) -> tuple[EnrichmentRule, ...]:
    """Return the rules that apply: none if preprocessing is off, else those of the file or the inline ones.

    Raises ``ConfigError`` when the file cannot be used.
    """
    if not config.enabled:
        return ()
    if config.enrichments_path is not None:
        return load_enrichment_file(config.enrichments_path)
    return config.enrichments or ()


class _FileGroup(CreateGroup):
    model_config = _CAMEL


class _FileAttribute(AttributeToAdd):
    model_config = _CAMEL


class _FileRule(ConfigBlock):
    model_config = _CAMEL

    group_reference: FilledText
    create_if_not_exists: _FileGroup | None = None
    add_group_if_not_exists: Boolean | None = None
    attributes_to_add: tuple[_FileAttribute, ...] = ()

    @model_validator(mode="after")
    def _one_way_to_create(self) -> _FileRule:
        if self.create_if_not_exists is not None and self.add_group_if_not_exists is not None:
            raise problem(
                "enrichment-both-create",
                "has both addGroupIfNotExists and createIfNotExists",
                "keep one of them",
            )
        return self

    def rule(self) -> EnrichmentRule:
        """Return the rule in the inline form; the short form names the group after its profile's last segment."""
        name = self.create_if_not_exists.group_name if self.create_if_not_exists else None
        if self.add_group_if_not_exists:
            name = re.split(r"[/#|]", self.group_reference.partition("|")[0].rstrip("/"))[-1]
        rule = self.model_dump(exclude={"create_if_not_exists", "add_group_if_not_exists"})
        return EnrichmentRule.model_validate(rule | {"create_if_not_exists": {"group_name": name} if name else None})


_NAMES = tuple(to_camel(name) for model in (_FileRule, _FileGroup, _FileAttribute) for name in model.model_fields)


def load_enrichment_file(path: Path) -> tuple[EnrichmentRule, ...]:
    """Return the rules of an external JSON file.

    Raises ``ConfigError`` with every finding: no readable JSON list, unknown fields, missing fields, both ways to
    create a group in one rule.
    """
    document = _read_json(path)
    if not isinstance(document, list):
        raise _rejected("enrichment-file", f"{path} holds no list of rules", "the file is a JSON list of objects")
    findings: list[Finding] = []
    rules: list[EnrichmentRule] = []
    for index, entry in enumerate(document):
        try:
            rules.append(_FileRule.model_validate(entry).rule())
        except ValidationError as error:
            findings += _findings(error, path, index)
    if findings:
        raise ConfigError(findings)
    return tuple(rules)


def _findings(error: ValidationError, path: Path, index: int) -> Iterator[Finding]:
    for one in translate(error, _NAMES):
        place = f"rule {index + 1}" + (f", {one.key}" if one.key else "")
        yield Finding(
            f"enrichment-{one.reference}".replace("enrichment-enrichment", "enrichment"),
            KEY,
            f"{place}: {one.message}",
            one.hint,
            where=str(path),
        )


def _read_json(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        hint = "a relative path starts at the working directory"
        raise _rejected("file-not-found", "enrichments_path names a file that does not exist", hint) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        raise _rejected("enrichment-file", f"{path} cannot be read: {reason}", None) from None
    if len(content) > LARGEST_FILE:
        raise _rejected("enrichment-file", f"{path} is larger than {LARGEST_FILE // 2**20} MiB", None)
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise _rejected("enrichment-file", f"{path} is not valid JSON, line {error.lineno}", None) from None
    except (ValueError, RecursionError):
        raise _rejected("enrichment-file", f"{path} is not valid JSON", "save it as UTF-8") from None


def _rejected(reference: str, message: str, hint: str | None) -> ConfigError:
    return ConfigError([Finding(reference, KEY, message, hint)])
