"""``config init``: write a first configuration: the example, reduced to the blocks that some steps need."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import config
from config.steps import NEED_CRTDL
from flows.output import print_line
from flows.shell import command
from tasks.shared.errors import InputError
from tasks.shared.files.out_file import write_file

EXAMPLE = Path(config.__file__).with_name("example.yaml")


def init(file: str, steps: str) -> int:
    """Write the configuration and print what is still to do.

    Raises:
        InputError: the file exists, or its directory does not.
        ConfigError: these steps cannot be a pipeline.
    """
    path, names = Path(file), [name for name in steps.replace(",", " ").split() if name]
    if path.exists() or path.is_symlink():
        raise InputError("config-exists", "this file exists already", context=file, hint="give another name")
    if not path.absolute().parent.is_dir():
        raise InputError("file-not-found", "there is no such directory", context=str(path.parent))
    text, example = template(names), EXAMPLE.read_text(encoding="utf-8")
    overrides = [f"pipeline.enabled_steps={','.join(names)}"]
    config.load_config(EXAMPLE, overrides=overrides, environ=dict.fromkeys(variables(example), "x"))
    write_file(path.absolute(), text.encode())
    print_line(f"{file} is written: {', '.join(names)}")
    if missing := [name for name in variables(text) if name not in os.environ]:
        print_line(f"set these variables: {', '.join(missing)}")
    print_line(f"put in your own addresses, then: {command('config', 'check', file)}")
    return 0


def template(steps: Sequence[str]) -> str:
    """Return the text of a configuration of these steps."""
    wanted = {"services", "pipeline", "jobs_dir", *steps} | ({"report"} if "send" in steps else set())
    if not set(NEED_CRTDL).isdisjoint(steps):
        wanted.add("crtdl_preprocessing")
    _, *paragraphs = EXAMPLE.read_text(encoding="utf-8").split("\n\n")
    heading = (
        '# A configuration of Sluice. A line that begins with "#" and a letter right after it is a key that is\n'
        '# switched off: remove the "#" to set it. Each key has a variable, too: APP_ and its path in capitals.'
    )
    text = "\n\n".join([heading, *(one for one in paragraphs if _name(one) in wanted)])
    return re.sub(r"(?<=enabled_steps: )\[.*\]", f"[{', '.join(steps)}]", text)


def _name(paragraph: str) -> str:
    """Return the name of the first key of a paragraph."""
    found = re.search(r"^ *#?(\w+):", paragraph, re.MULTILINE)
    return found[1] if found else ""


def variables(text: str) -> list[str]:
    """Return the variables on lines that are not switched off, in order."""
    lines = [line.partition("#")[0] for line in text.splitlines()]
    return list(dict.fromkeys(re.findall(r"\$\{(\w+)\}", "\n".join(lines))))
