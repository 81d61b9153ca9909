"""The enrichment rules: inline ones, or those of the external JSON file (docs/configuration.md).

The file has the same keys in camelCase, and ``addGroupIfNotExists`` as a short form of ``createIfNotExists``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator
from pydantic.alias_generators import to_camel

from config.findings import ConfigError, Finding, of_pydantic
from config.services import RULE_NAMES, CreateGroup, CrtdlPreprocessingConfig, EnrichmentRule
from config.types import problem

KEY = "services.crtdl_preprocessing.enrichments_path"


def enrichment_rules(config: CrtdlPreprocessingConfig) -> tuple[EnrichmentRule, ...]:
    """Return the rules that apply: none if preprocessing is off, else those of the file or the inline ones.

    Raises ``ConfigError`` when the file cannot be used.
    """
    if not config.enabled:
        return ()
    if config.enrichments_path is not None:
        return load_enrichment_file(config.enrichments_path)
    return config.enrichments or ()


class _FileRule(EnrichmentRule):
    add_group_if_not_exists: bool | None = None

    @model_validator(mode="after")
    def _one_way_to_create(self) -> _FileRule:
        if self.create_if_not_exists is not None and self.add_group_if_not_exists is not None:
            raise problem("both-create", "has both addGroupIfNotExists and createIfNotExists", "keep one of them")
        return self

    def rule(self) -> EnrichmentRule:
        """Return the inline form. ``addGroupIfNotExists`` names the group after the last segment of its profile."""
        create = self.create_if_not_exists
        if self.add_group_if_not_exists:
            profile = self.group_reference.partition("|")[0].rstrip("/")
            create = CreateGroup(group_name=re.split(r"[/#]", profile)[-1])
        rule = {name: getattr(self, name) for name in EnrichmentRule.model_fields}
        return EnrichmentRule(**rule | {"create_if_not_exists": create})


_NAMES = [to_camel(name) for name in (*RULE_NAMES, "add_group_if_not_exists")]


def load_enrichment_file(path: Path) -> tuple[EnrichmentRule, ...]:
    """Return the rules of an external JSON file. Raises ``ConfigError`` with every finding."""
    findings: list[Finding] = []
    rules: list[EnrichmentRule] = []
    for number, entry in enumerate(_entries(path), start=1):
        try:
            rules.append(_FileRule.model_validate(entry, by_alias=True, by_name=False).rule())
        except ValidationError as error:
            for one in of_pydantic(error, _NAMES):
                message = f"rule {number}{f' ({one.key})' if one.key else ''}: {one.message}"
                findings.append(Finding(f"enrichment-{one.reference}", KEY, message, one.hint, where=str(path)))
    if findings:
        raise ConfigError(findings)
    return tuple(rules)


def _entries(path: Path) -> list[Any]:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise _rejected(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise _rejected(f"{path} is not valid JSON{line}") from None
    if not isinstance(document, list):
        raise _rejected(f"{path} holds no list of rules")
    return document


def _rejected(message: str) -> ConfigError:
    return ConfigError([Finding("enrichment-file", KEY, message, "name a JSON file: a list of objects")])
