"""The external JSON file of enrichment rules, with its camelCase names (document 1, services.crtdl_preprocessing).

``linkedGroups`` is read here too, though document 1 lists it for the inline form only: both describe the same rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from config.enrichments import KEY
from config.fields import Block, Boolean, FilledText, Text, problem
from config.findings import ConfigError, Finding
from config.services import AttributeToAdd, CreateGroup, EnrichmentRule
from config.translate import translate

_RELATIVE = "a relative path starts at the working directory"

LARGEST_FILE = 16 * 1024 * 1024


class _Camel(Block):
    model_config = Block.model_config | {"alias_generator": to_camel}


class _FileGroup(_Camel):
    group_name: Text


class _FileAttribute(_Camel):
    attribute_ref: FilledText
    must_have: Boolean = False
    # Not in document 1's list of the file's names, but in that of the inline form, and harmless.
    linked_groups: tuple[Text, ...] = ()


class _FileRule(_Camel):
    group_reference: FilledText
    create_if_not_exists: _FileGroup | None = None
    add_group_if_not_exists: Boolean | None = None
    attributes_to_add: tuple[_FileAttribute, ...] = Field(())

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
        """The same rule in the inline form; the short form names the group after its profile's last segment."""
        name = self.create_if_not_exists.group_name if self.create_if_not_exists else None
        if self.add_group_if_not_exists:
            name = re.split(r"[/#|]", self.group_reference.partition("|")[0].rstrip("/"))[-1]
        return EnrichmentRule(
            group_reference=self.group_reference,
            create_if_not_exists=CreateGroup(group_name=name) if name else None,
            attributes_to_add=tuple(
                AttributeToAdd(
                    attribute_ref=attribute.attribute_ref,
                    must_have=attribute.must_have,
                    linked_groups=attribute.linked_groups,
                )
                for attribute in self.attributes_to_add
            ),
        )


_NAMES = tuple(
    field.alias or name
    for model in (_FileRule, _FileGroup, _FileAttribute)
    for name, field in model.model_fields.items()
)


def load_enrichment_file(path: Path) -> tuple[EnrichmentRule, ...]:
    """The rules of an external JSON file.

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
        raise _rejected("file-not-found", "enrichments_path names a file that does not exist", _RELATIVE) from None
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
