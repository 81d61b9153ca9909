"""The reference page of the configuration and its JSON Schema for editors, made from the models.

Both are checked in, and a test compares. After a change of the models run
``python -m config.reference > docs/configuration.md`` and
``python -m config.reference schema > config/pipeline.schema.json``.

The schema describes shapes and ranges. The rules that join keys, and what a ``${VAR}`` expands to, are the loader's.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, get_args, get_origin

from pydantic_core import to_jsonable_python

from config.auth import AuthConfig
from config.deprecated import DEPRECATED, REMOVED_BLOCKS, RENAMED, RENAMED_STEPS
from config.duration import format_duration
from config.fields import ConfigBlock, KeyKind
from config.keys import KeyInfo, blocks, describe_keys, env_name, show
from config.services import SHORTEST, AttributeToAdd, CreateGroup, EnrichmentRule
from config.steps import STEPS

_INTRODUCTION = """\
# Configuration

<!-- Generated from the models: python -m config.reference > docs/configuration.md -->

This page describes every key of the configuration.

One YAML file describes a pipeline. `sluice config init FILE` writes a first one with what its steps need and a `${VAR}`
for every secret (`--steps extractor,pseudonymizer,send`; on a terminal it asks). `sluice config check FILE` lists all
that is wrong with it, `sluice config show FILE` prints every value in force and where it came from, and
`sluice config schema` prints the JSON Schema for an editor. `config/example.yaml` holds every key with a comment.

## Where a value comes from

Highest first:

1. **Flags.** `--set KEY=VALUE` with a dotted key, repeatable; the last one for a key wins. Values are read as YAML;
   where a key wants text, the text is used unchanged unless it is quoted. `--dir` and `--anonymization-config`
   set the keys of their meaning.
2. **Environment.** Every key has a variable: `APP_` and the path in capitals, each `.` replaced by `_`. Lists are
   comma-separated; a text that begins with `[` is read as a YAML list, for items that hold a comma. The list of
   rules (`enrichments`) is YAML or JSON text. Truth values are true/false, yes/no, on/off or 1/0. An empty variable
   counts as unset. An `APP_` variable that names no key gives a warning. Variables with the older prefix `AETHER_`
   work too, with a warning, where no `APP_` variable gives the key.
3. **The file.**
4. **Defaults**, as in the tables below.

A key that is given as `null` has its default, also when a lower source gives it a value. Empty text counts as not
set. Paths are relative to the working directory. Where a key wants text, a number is taken as it is written.

## Variables in the file

`${VAR}` is replaced in every string of the file when it is read, and in values of `--set`; with braces only, so `$abc`
inside a password stays as it is. `$${` writes `${` itself. A variable that is not set is an error that names variable
and key, unless the key belongs to a step that is not enabled. What a variable holds is not expanded again, and
values of `APP_` variables are not expanded. In place of a list, a variable holds comma-separated text.

## Secrets

Give secrets through `${VAR}` or their `APP_` variable. Other users of the machine can read a command line, so `--set`
refuses a secret unless it names a variable: `--set 'services.send.auth.password=${SEND_PASSWORD}'`. Secrets are
masked wherever values are shown, and no message quotes one. URLs must not hold a user name or a password.

## Durations

ISO 8601 from days to seconds (`P1DT2H`, `PT30M`, `PT1.5S`) or short (`30m`, `1h30m`, `500ms`, `1d`). Weeks, months,
years and bare numbers are errors; the longest is 3650 days. A bare `0` is accepted only where it selects a default
or means "not at all".
"""

_STEPS = """\
The steps:

| Step | What it does |
|---|---|
"""

_STEP_RULES = """
- Exactly one import step (`extractor`, `local_import` or `http_import`), and it comes first.
- `wait` cannot be first and cannot follow another `wait`.
- Only `wait` and `validation` may be in the list more than once.
- `csv_conversion` and `parquet_conversion` of earlier versions are errors: use `flattening`.
"""

_AUTH = """\
## Auth blocks

`services.extractor.auth`, `services.pseudonymizer.auth` and `services.send.auth` have the same keys.

- Basic Auth (`username`, `password`) and OAuth 2.0 client credentials (`oauth_issuer_uri`, `oauth_client_id`,
  `oauth_client_secret`) both fill the `Authorization` header: setting both is an error, and so is an incomplete set.
- The API key travels in its own header and goes together with either.
- `api_key_header` may be `Authorization`, to send a fixed token as the whole value, only without Basic Auth and OAuth.
- In `s3_upload`, `services.send.auth` is for an upstream proxy (Basic, `Proxy-Authorization`); `api_key` and OAuth
  keys are ignored with a warning. The store itself uses the keys of `services.send.s3`.
- Credentials over plain `http://` to another machine give a warning.
"""

_DEPRECATED = """\
## Deprecated keys

Still accepted, with a warning; a later major version removes them. Their variables work too. The older integer keys
together with their new form, and the flat auth keys together with the auth block, are errors.

| Key | Variable | Use instead |
|---|---|---|
"""


def render() -> str:
    """Return the reference page."""
    return "\n".join([_INTRODUCTION, *_sections(), _AUTH, _deprecated()]).rstrip() + "\n"


def _sections() -> Iterator[str]:
    for path, model in blocks().items():
        keys = [info for info in describe_keys() if info.key.rpartition(".")[0] == path]
        if keys:
            yield f"## {f'`{path}`' if path else 'Top level'}\n"
            if model is AuthConfig:
                yield "See [Auth blocks](#auth-blocks).\n"
            yield from _table(keys)
        if path == "pipeline":
            rows = "".join(f"| `{name}` | {step.summary} |\n" for name, step in STEPS.items())
            yield _STEPS + rows + _STEP_RULES
        if path == "services.crtdl_preprocessing":
            yield from _rules()
        if path == "retry":
            yield "wait = min(initial * 2^attempt, max), attempts counted from 0.\n"


def _table(keys: list[KeyInfo]) -> Iterator[str]:
    yield "| Key | Type | Default | Range | Variable | Description |\n|---|---|---|---|---|---|"
    for info in keys:
        default = f"`{info.default_text}`" if info.default_text else ""
        yield f"| `{info.key}` | {info.kind.value} | {default} | {_range(info)} | `{info.env}` | {info.description} |"
    yield ""


def _range(info: KeyInfo) -> str:
    if info.minimum == SHORTEST:
        return "above 0"
    if info.maximum is not None:
        return f"{show(info.minimum)}–{info.maximum}"
    return f"≥ {show(info.minimum)}" if info.minimum is not None else ""


def _rules() -> Iterator[str]:
    yield "A rule of `enrichments`:\n\n| Key | Required | Description |\n|---|---|---|"
    yield from _rule_rows(EnrichmentRule, "")
    yield from _rule_rows(CreateGroup, "create_if_not_exists.")
    yield from _rule_rows(AttributeToAdd, "attributes_to_add[].")
    yield (
        "\nThe JSON file of `enrichments_path` is a list of the same rules with camelCase names (`groupReference`,\n"
        "`createIfNotExists`, `groupName`, `attributesToAdd`, `attributeRef`, `mustHave`, `linkedGroups`). In its\n"
        "short form, `addGroupIfNotExists: true` names a missing group after the last segment of its profile's URL.\n"
        "Unknown fields, and both ways to create a group in one rule, are errors.\n"
    )


def _rule_rows(model: type[ConfigBlock], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        text = (field.description or "").removesuffix(". Required")
        yield f"| `{prefix}{name}` | {'yes' if field.is_required() else ''} | {text} |"


def _deprecated() -> str:
    rows = []
    for old in DEPRECATED.values():
        instead = f"`{old.replacement}`" if old.replacement else "nothing: remove it"
        rows.append(f"| `{old.key}` | `{env_name(old.key)}` | {instead} |")
    rows += [f"| `{old}` | `{env_name(old)}…` | `{new}` |" for old, new in RENAMED.items()]
    rows += [f"| `{name}` | | nothing: remove it |" for name in sorted(REMOVED_BLOCKS)]
    rows += [f"| step `{old}` | | step `{new}` |" for old, new in RENAMED_STEPS.items()]
    return _DEPRECATED + "\n".join(rows)


_VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*\}"}
_DURATION_PATTERN = (
    r"^(P(?=[0-9T])([0-9.,]+D)?(T(?=[0-9])([0-9.,]+H)?([0-9.,]+M)?([0-9.,]+S)?)?"
    r"|(?=[0-9])([0-9.]+d)?([0-9.]+h)?([0-9.]+m)?([0-9.]+s)?([0-9.]+ms)?)$"
)
_LOWEST = timedelta(seconds=1)
"""The one lower bound of durations that document 1 names."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) as plain values."""
    root: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Sluice pipeline configuration",
        "type": "object",
        "additionalProperties": False,
        "properties": {},
    }
    for path, model in blocks().items():
        if path:
            block = _place(root, path)
            block |= {"type": ["object", "null"], "additionalProperties": False, "properties": {}}
            block["description"] = (model.__doc__ or "").replace("``", "`").split("\n")[0]
    for info in describe_keys():
        _place(root, info.key).update(_key(info))
    for old in DEPRECATED.values():
        instead = f"Use {old.replacement}" if old.replacement else "Has no effect"
        value = {"type": ["integer", "string"]} if old.kind is KeyKind.INTEGER else {"type": "string"}
        _place(root, old.key).update(value | {"deprecated": True, "description": f"Deprecated. {instead}"})
    root["$defs"] = {"enrichmentRule": _of_type(EnrichmentRule)}
    return root


def _place(root: dict[str, Any], path: str) -> dict[str, Any]:
    here = root
    for name in path.split("."):
        here = here["properties"].setdefault(name, {})
    return here


def _key(info: KeyInfo) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": info.description} | _shape(info)
    if info.default is not None and info.default != ():
        schema["default"] = to_jsonable_python(info.default)
    if info.example is not None:
        schema["examples"] = to_jsonable_python([info.example])
    return schema


def _shape(info: KeyInfo) -> dict[str, Any]:
    described: dict[str, Any] = {}
    forms: list[dict[str, Any]]
    match info.kind:
        case KeyKind.INTEGER:
            bounds = {"minimum": info.minimum, "maximum": info.maximum}
            forms = [{"type": "integer"} | {name: bound for name, bound in bounds.items() if bound is not None}]
        case KeyKind.BOOLEAN:
            forms = [{"type": "boolean"}]
        case KeyKind.CHOICE:
            forms = [{"enum": list(info.choices)}]
        case KeyKind.DURATION:
            forms = [{"type": "string", "pattern": _DURATION_PATTERN, "examples": ["PT30M", "PT5S", "1h30m"]}]
            if re.search(r"\b0 (selects|means)", info.description):
                forms += [{"const": 0}, {"const": "0"}]
            if info.minimum == _LOWEST:
                described = {"description": f"{info.description}. At least {format_duration(_LOWEST)}"}
        case KeyKind.LIST:
            choices = {"anyOf": [{"enum": list(info.choices)}, _VARIABLE]}
            forms = [{"type": "array", "items": choices if info.choices else {"type": "string"}}]
        case KeyKind.RULES:
            return {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/enrichmentRule"}}, {"type": "null"}]}
        case _:
            # Numbers are taken as they are written: a project may be called 0815.
            return {"type": ["string", "number", "null"]}
    return described | {"anyOf": [*forms, _VARIABLE, {"type": "null"}]}


def _of_type(annotation: Any) -> dict[str, Any]:
    """Return the schema of a type in an enrichment rule: a block, a list, one line of text or a truth value."""
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple:
        return {"type": "array", "items": _of_type(arguments[0])}
    if arguments:
        return _of_type(arguments[0])  # what may also be absent, or has a reader
    if not issubclass(annotation, ConfigBlock):
        return {"type": "boolean" if annotation is bool else "string"}
    fields = annotation.model_fields.items()
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name, field in fields if field.is_required()],
        "properties": {name: _of_type(field.annotation) | {"description": field.description} for name, field in fields},
    }


def render_schema() -> str:
    """Return the JSON Schema as it is checked in."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_schema() if sys.argv[1:] == ["schema"] else render())
