"""``config migrate``: rewrite a configuration file with current names. Never imports Prefect."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from config import ConfigError, Finding, LoadedConfig, load_config
from config import migrate as rewrite
from config.deprecated import OLDER_PREFIX
from config.document import DocumentError, plain
from config.keys import ENV_PREFIX, root_urls
from config.sources import read_environment, read_file, text_of
from config.template import variables
from flows.commands.init import free, load_text
from flows.output import print_findings, print_line
from flows.shell import command
from tasks.shared.errors import InputError
from tasks.shared.files.out_file import write_file

_ANYTHING = "http://localhost"
"""In place of a variable that is not set here: text, and a URL."""
_LEFT = frozenset({"deprecated-key", "url-ends-in-fhir"})
"""Warnings about what the file, or a variable, still has of an earlier version."""


def migrate(old: str, new: str | None, *, force: bool) -> int:
    """Write the file ``old`` with current names to ``new``, or print it.

    Warnings about manual changes, such as the names of variables, go to stderr. Nothing is written unless both files
    are the same configuration.

    Raises:
        ConfigError: the file has errors, which come first.
        InputError: the file ``new`` exists or cannot be written; ``migration-differs``.
    """
    if new is not None:
        free(Path(new), force=force)
    text = text_of(Path(old))
    # Variables of keys would hide a difference.
    own = {name: value for name, value in os.environ.items() if not name.startswith((ENV_PREFIX, OLDER_PREFIX))}
    environ = dict.fromkeys(variables(text), _ANYTHING) | own
    before = load_config(Path(old), environ=environ)
    after: LoadedConfig | None = None
    try:
        changed = rewrite.migrate(text)
        with suppress(ConfigError):
            after = load_text(changed, environ)
    except DocumentError as error:
        raise _by_hand(old, f"the file cannot be migrated: it {error}", error.line) from None
    if after is None or after.config != before.config:
        raise _by_hand(old, "the migrated file would be a different configuration")
    print_findings(_placed(finding, new) for finding in after.warnings if finding.reference in _LEFT)
    print_findings(read_environment(os.environ, OLDER_PREFIX).findings)
    for key, value in read_file(Path(old)).values.items():
        if key in root_urls() and value.older and "${" in str(plain(value.node)):
            print_line(f"warning: a variable gives {key}: in the new file its value must not end in /fhir", err=True)
    if new is None:
        print_line(changed.removesuffix("\n"))
        return 0
    write_file(Path(new).absolute(), changed.encode())
    print_line(f"{new} is written. Check it with: {command('config', 'check', new)}")
    return 0


def _by_hand(old: str, message: str, line: int | None = None) -> InputError:
    return InputError(
        "migration-differs", f"{message}; nothing is written", context=old if line is None else f"{old}:{line}",
        hint="change the older names by hand, as config check shows them; "
        "a URL of a server that a variable holds must not end in /fhir then",
    )  # fmt: skip


def _placed(finding: Finding, new: str | None) -> Finding:
    """Return a finding of the migrated text with its place there."""
    return finding if finding.line is None else replace(finding, where=f"{new or 'new text'}:{finding.line}")
