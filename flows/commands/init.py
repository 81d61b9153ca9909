"""``config init``: write a first configuration from answers on a terminal or in a pipe. Never imports Prefect."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from config import STEPS, ConfigError, LoadedConfig, Role, has_role, load_config
from config.fields import KeyKind
from config.keys import blocks, keys_by_name
from config.model import read_step
from config.services import SendMode
from config.template import SIGNED_IN, TERMS, example, may_sign_in, template, to_fill_in, variables
from flows.output import on_terminal, print_line
from flows.shell import command
from tasks.shared.errors import InputError, shown
from tasks.shared.files.out_file import write_file

FIRST_STEPS = tuple(name for name, step in STEPS.items() if step.by_default)
"""The steps of a first job when none are named."""


@dataclass
class Wanted:
    """The answers from which the configuration is written."""

    steps: Sequence[str]
    mode: SendMode = SendMode.DIRECT_RESOURCE_LOAD
    values: dict[str, str] = field(default_factory=dict)
    signed_in: list[str] = field(default_factory=lambda: [*SIGNED_IN])


def init(file: str, steps: str | None, *, force: bool) -> int:
    """Write the configuration and print what is still to do. Asks for steps and addresses if a person can answer.

    Raises:
        InputError: the file exists, it cannot be written, or the piped answers cannot be used.
        ConfigError: these steps cannot be a pipeline.
    """
    path = Path(file)
    free(path, force=force)
    given = _steps(steps) if steps is not None else None
    wanted = ask_settings(given) if on_terminal() or is_piped() else Wanted(given or FIRST_STEPS)
    check = command("config", "check", file)
    heading = (
        "A configuration of Sluice. A line that begins with # and a letter right after it is a key that is switched",
        "off: remove the # to set it. Each key can also be set by a variable: APP_ and its path in capitals.",
        f"Check it with: {check}",
    )
    text = template(
        wanted.steps, mode=wanted.mode, values=wanted.values, signed_in=wanted.signed_in, heading=heading
    )  # fmt: skip
    try:
        _tried(text, wanted.values)
    except ConfigError as error:  # there is no file yet that a person could look into
        raise ConfigError([replace(finding, where=None, line=None) for finding in error.findings]) from None
    write_file(path.absolute(), text.encode())
    print_line(f"{file} is written: {', '.join(wanted.steps)}")
    missing = [name for name in variables(text) if name not in os.environ]
    if missing:
        print_line(f"set these variables: {', '.join(missing)}")
    untouched = [key for key in to_fill_in(wanted.steps, wanted.mode) if key not in wanted.values]
    if examples := [key for key in untouched if _is_example(key)]:
        print_line("\n".join(["replace these examples with your own values:", *(f"  {key}" for key in examples)]))
    print_line(f"next: {check}")
    return 0


def is_piped() -> bool:
    """Return whether standard input is a pipe or a file, one answer per line. ``/dev/null`` is neither."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode if sys.stdin is not None else 0
    except (OSError, ValueError):  # closed, or no file at all
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def answer(question: str, *, key: str, default: str, read: Callable[[str], Any]) -> Any:
    """Ask one question and return the answer converted by ``read``; an empty one is the default.

    On a terminal, an answer that cannot be used is asked for again. In a pipe, each line answers one question.

    Raises:
        InputError: the pipe ended, or a line of it cannot be used.
    """
    if on_terminal():
        return click.prompt(question, default=default, value_proc=read)
    try:
        text = click.prompt(question, default=default, value_proc=str)
        text.encode()  # where the locale is C, Python decodes every byte
        print_line(text)  # a terminal shows what somebody types
        return read(text)
    except click.UsageError as error:
        problem = f"the piped answer {shown(text)} cannot be used: {error.message}"
    except click.Abort:
        print_line("")
        problem = "the piped answers ended before this question"
    except UnicodeError:
        print_line("")
        problem = "the piped answer cannot be decoded"
    raise InputError(
        "no-answer", problem, context=key,
        hint="give one line for each question, an empty one for the default; with </dev/null nothing is asked",
    )  # fmt: skip


def ask_settings(steps: Sequence[str] | None) -> Wanted:
    """Return the answers of a terminal or a pipe, service by service; an empty one is the value in brackets."""
    print_line("Press Enter to accept the value in brackets.")
    if steps is None:
        print_line(f"Available steps: {', '.join(STEPS)}. Begin with one import.")
        steps = answer("Steps, in order", key="steps", default=", ".join(FIRST_STEPS), read=_read(_steps))
    wanted = Wanted(steps, signed_in=[])
    for step in dict.fromkeys(steps):
        _ask_step_settings(step, wanted)
    if any(has_role(step, Role.SEND) for step in steps):
        _ask_terms(wanted)
    return wanted


def _ask_terms(wanted: Wanted) -> None:
    """Ask for the terms at the top of the release report: purpose, legal basis and so on."""
    print_line("\nThe terms of the release, shown at the top of the release report. Enter - for any that is unknown.")
    for key in TERMS:
        said = keys_by_name()[key].description.partition(",")[0]
        text = answer(f"{said}, such as {example()[key].value}\n{key}", key=key, default="-", read=_checked(key))
        if text != "-":
            wanted.values[key] = text


def _ask_step_settings(step: str, wanted: Wanted) -> None:
    """Ask for the settings of this step, after a line about the service it uses."""
    known = example()
    if (block := known.get(f"services.{step}")) is not None:
        print_line("\n" + block.said)
    if has_role(step, Role.SEND):
        key, modes = "services.send.send_as", click.Choice([str(mode) for mode in SendMode])
        question = f"{key} ({', '.join(modes.choices)})"
        wanted.mode = SendMode(
            answer(question, key=key, default=str(wanted.mode), read=partial(modes.convert, param=None, ctx=None))
        )
    for key in to_fill_in([step], wanted.mode):
        if not _is_example(key):
            continue
        default = known[key].value.strip("[]")
        said = keys_by_name()[key].description.partition(". ")[0].replace("`", "")
        value = answer(f"{said}\n{key}", key=key, default=default, read=_checked(key))
        if value != default:
            wanted.values[key] = value
    for _ in may_sign_in([step], wanted.mode):
        key = f"services.{step}.auth.username"
        said = f"User name, such as {known[key].value}. Enter - if the service needs none."
        name = answer(f"{said}\n{key}", key=key, default="-", read=_checked(key))
        if name != "-":
            wanted.signed_in.append(step)
            wanted.values[key] = name


def _is_example(key: str) -> bool:
    """Return whether the example's value must be replaced: neither a variable nor a choice."""
    return keys_by_name()[key].kind is not KeyKind.CHOICE and not example()[key].value.startswith("${")


def _steps(text: str) -> list[str]:
    """Return the names of steps separated by commas or blanks. Raises ``InputError``."""
    found = []
    for name in text.replace(",", " ").split():
        try:
            found.append(read_step(name))
        except PydanticCustomError as error:
            hint = str((error.context or {}).get("hint"))
            raise InputError("unknown-step", f"{shown(name)} {error.message()}", context="--steps", hint=hint) from None
    if not found:
        raise InputError("unknown-step", "no step is named", hint=f"the steps are {', '.join(STEPS)}")
    return found


def _checked(key: str) -> Callable[[str], str]:
    """Return a converter of an answer, which must be a value of this key or name a variable."""
    block, _, name = key.rpartition(".")
    described = blocks()[block].model_fields[name]
    kind: Any = Annotated[described.annotation, *(described.metadata or [None])]  # it wants one at least
    adapter = TypeAdapter(kind)
    listed = keys_by_name()[key].default == ()

    def read(text: str) -> str:
        text = text.strip()
        if text != "-" and "${" not in text:
            try:
                adapter.validate_python(tuple(text.split(",")) if listed else text)
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                hint = (first.get("ctx") or {}).get("hint")
                raise click.UsageError(first["msg"] + (f": {hint}" if hint else "")) from None
        return text

    return read


def _read(reader: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        try:
            found = reader(text)
            _tried(template(found))
        except InputError as error:
            raise click.UsageError(f"{error.message}: {error.hint}") from None
        except ConfigError as error:
            first = error.findings[0]
            raise click.UsageError(f"{first.message}: {first.hint}") from None
        return found

    return read


def _tried(text: str, values: Mapping[str, str] | None = None) -> None:
    """Raise the error that ``config check`` would, once the variables are set."""
    addresses = [value for key, value in (values or {}).items() if keys_by_name()[key].kind is KeyKind.URL]
    set_ = dict.fromkeys(variables(text), "x") | dict.fromkeys(variables("\n".join(addresses)), "https://x.example")
    load_text(text, set_)


def load_text(text: str, environ: Mapping[str, str]) -> LoadedConfig:
    """Load a configuration that is in no file yet."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as directory:
        path = write_file(Path(directory) / "sluice.yaml", text.encode())  # it may hold secrets
        return load_config(path, environ=environ)


def free(path: Path, *, force: bool) -> None:
    """Raise ``InputError`` unless a file can be written at ``path``; ``force`` allows to replace one."""
    if not path.absolute().parent.is_dir():
        raise InputError(
            "file-not-found", "there is no such directory", context=str(path.parent),
            hint="check the path; a relative one starts at the working directory",
        )  # fmt: skip
    if (path.exists() or path.is_symlink()) and (not force or not path.is_file()):
        raise InputError(
            "config-exists", "a file or directory of this name exists already", context=str(path),
            hint="give another name" + ("; --force overwrites it" if path.is_file() else ""),
        )  # fmt: skip
