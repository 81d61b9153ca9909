"""What a shell offers for the word at the cursor: ids, steps, keys, files (``4-product.md`` §2, ``completion``).

It has to be there before a person lifts her finger: no Prefect, no server, no configuration read in full. So ids come
from the names in the jobs directory, keys from the JSON Schema, and of the configuration the lines are looked at that
say where the jobs are and which steps they have. What cannot be found out is not offered; nothing here is an error.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, split_arg_string

from flows.job.which import LATEST, directories

Items = list[CompletionItem[str]]

SCHEMA: Final = Path(__file__).parents[2] / "config" / "pipeline.schema.json"

MOST: Final = 200
"""Ids that are offered, newest first: more is nothing to choose from."""

LARGEST: Final = 256 * 1024
"""Bytes of a configuration that are looked at."""

SEEN: Final = ".extractions"
"""In the jobs directory: the ids that ``extraction list`` has shown last, a line each; to ask the server takes long."""

_STEPS: Final = re.compile(r"\benabled_steps:\s*(\[[^\]]*\]|(?:\s*-\s*[\w\"']+[^\n]*)+)")


def files(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Files and directories: the shell knows them."""
    return [CompletionItem(incomplete, type="file")]


def folders(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Directories."""
    return [CompletionItem(incomplete, type="dir")]


def jobs(context: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """The ids of jobs that have a directory, newest first, and ``latest``."""
    return _beginning([LATEST, *_ids(jobs_dir(context))], incomplete)


def extractions(context: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """The ids that ``extraction list`` has shown last."""
    from tasks.shared.files.private_file import read_file

    try:
        known = read_file(jobs_dir(context) / SEEN).decode("ascii").split()
    except (OSError, ValueError):
        known = []
    return _beginning(known[:MOST], incomplete)


def steps_of_job(context: click.Context, _: click.Parameter, incomplete: str) -> Items:
    """The steps of the configuration, and their positions."""
    names = _steps_of(context)
    return _beginning(dict.fromkeys([*names, *map(str, range(1, len(names) + 1))]), incomplete)


def step_list(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Names of steps between commas."""
    before, comma, last = incomplete.rpartition(",")
    return _beginning((f"{before}{comma}{name}" for name in step_names()), f"{before}{comma}{last}")


def overrides(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Keys with the equals sign; behind it the values, where a key has a few."""
    key, equals, _rest = incomplete.partition("=")
    if equals:
        return _beginning((f"{key}={value}" for value in _choices(keys().get(key, {}))), incomplete)
    return _beginning((f"{name}=" for name in keys()), incomplete)


def remember_extractions(place: Path, ids: Iterable[str]) -> None:
    """Keep what ``extraction list`` shows, where there is a jobs directory. What cannot be kept is not offered."""
    from tasks.shared.errors import StorageError
    from tasks.shared.files.out_file import write_file

    if place.is_dir():
        try:
            write_file(place / SEEN, "".join(f"{one}\n" for one in list(ids)[:MOST]).encode())
        except StorageError:
            return


@cache
def keys() -> dict[str, Any]:
    """Every key by its dotted path, with its schema; deprecated ones are not offered."""
    return dict(_walk(json.loads(SCHEMA.read_text(encoding="utf-8")), ""))


def step_names() -> list[str]:
    """Every step."""
    return _choices(keys()["pipeline.enabled_steps"])


def _walk(schema: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, below in schema["properties"].items():
        if "properties" in below:
            yield from _walk(below, f"{prefix}{name}.")
        elif not below.get("deprecated"):
            yield f"{prefix}{name}", below


def _choices(schema: dict[str, Any]) -> list[str]:
    """The values that a schema names, at whatever depth; of one that is true or false, both."""
    if "enum" in schema:
        return [str(value) for value in schema["enum"]]
    if schema.get("type") == "boolean":
        return ["true", "false"]
    below = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]
    return [value for one in below for value in _choices(one)]


def _beginning(values: Iterable[str], incomplete: str) -> Items:
    return [CompletionItem(value) for value in values if value.startswith(incomplete)]


def _ids(place: Path) -> list[str]:
    """Newest first by the time somebody last worked on them."""
    try:
        found = [(path.stat().st_mtime, path.name) for path in directories(place)]
    except OSError:
        return []
    return [name for _, name in sorted(found, reverse=True)[:MOST]]


def jobs_dir(context: click.Context) -> Path:
    """Where the jobs of the configuration are, as far as a look tells: flags, environment, file, default."""
    name = _given(context, "jobs_dir") or os.environ.get("APP_JOBS_DIR") or _value_of("jobs_dir", _text_of(context))
    return Path(re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], ""), name or "jobs"))


def _steps_of(context: click.Context) -> list[str]:
    """The enabled steps in their order; all that there are, where the file does not say it in a way that is seen."""
    text = _given(context, "pipeline.enabled_steps")
    if text is None:
        written = _STEPS.search(_text_of(context))
        text = re.sub(r"#[^\n]*", "", written[1]) if written else ""
    known = step_names()
    return [name for name in re.findall(r"\w+", text) if name in known] or known


def _given(context: click.Context, key: str) -> str | None:
    """What ``--set`` says of a key before the cursor."""
    pairs = [str(one).partition("=") for one in context.params.get("overrides") or ()]
    return next((value for name, _, value in reversed(pairs) if name == key), None)


def _text_of(context: click.Context) -> str:
    """What the configuration says. Behind an option that still lacks its value click knows no arguments: then it is the
    first word of the line that is a file.
    """
    config = context.params.get("config")
    words = [str(config)] if config else split_arg_string(os.environ.get("COMP_WORDS", ""))[1:]
    for word in words:
        try:
            with open(word, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - a word of the command line
                return file.read(LARGEST)
        except (OSError, ValueError):
            continue
    return ""


def _value_of(key: str, text: str) -> str | None:
    """The value of a key at the top level that is written on its line."""
    found = re.search(
        rf"^{key}:[ \t]*(\"[^\"\n]*\"|'[^'\n]*'|[^\s#][^\n]*?)[ \t]*(?:[ \t]#[^\n]*)?$", text, re.MULTILINE
    )
    return found[1].strip("\"'") if found else None
