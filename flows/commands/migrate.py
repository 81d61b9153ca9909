"""``config migrate``: a configuration file in the names of today. Never imports Prefect."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from config import ConfigError, Finding, LoadedConfig, load_config
from config import migrate as rewrite
from config.sources import text_of
from config.template import variables
from flows.commands.init import free
from flows.output import complain, say
from flows.shell import command
from tasks.shared.errors import InternalError
from tasks.shared.files.out_file import write_file

_ANYTHING = "http://localhost"
"""In place of a variable that is not set here: text, and a URL."""
_LEFT = frozenset({"deprecated-key", "url-ends-in-fhir"})
"""Warnings about what the file, or a variable, still has of an earlier version."""


def migrate(old: str, new: str | None, *, force: bool) -> int:
    """Write the file ``old`` in the names of today to ``new``, or print it.

    Warnings about what a person must change, such as the names of variables, go to stderr. Nothing is written unless
    both files are the same configuration.

    Raises:
        ConfigError: the file has errors, which come first.
        InputError: there is a file ``new`` already, or nowhere to write it.
        InternalError: ``migration-differs``.
    """
    if new is not None:
        free(Path(new), force=force)
    text = text_of(Path(old))
    environ = dict.fromkeys(variables(text), _ANYTHING) | os.environ
    before = load_config(Path(old), environ=environ)
    changed = rewrite.migrate(text)
    after = _loaded(changed, environ)
    if after is None or after.config != before.config:
        raise InternalError(
            "migration-differs", "the migrated file would not be the same configuration; nothing is written",
            context=old, hint="this is a defect of the program; change the names by hand, as config check shows them",
        )  # fmt: skip
    complain(_placed(finding, new) for finding in after.warnings if finding.reference in _LEFT)
    if new is None:
        say(changed.removesuffix("\n"))
        return 0
    write_file(Path(new).absolute(), changed.encode())
    say(f"{new} is written. Check it with: {command('config', 'check', new)}")
    return 0


def _placed(finding: Finding, new: str | None) -> Finding:
    """Return a finding of the migrated text with its place there."""
    return finding if finding.line is None else replace(finding, where=f"{new or 'new text'}:{finding.line}")


def _loaded(text: str, environ: dict[str, str]) -> LoadedConfig | None:
    with tempfile.TemporaryDirectory(prefix="sluice-migrate-") as directory:
        path = Path(directory) / "sluice.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            return load_config(path, environ=environ)
        except ConfigError:
            return None
