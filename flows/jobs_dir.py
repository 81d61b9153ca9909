"""The jobs directory: check who can write to it (``4-product.md`` §4).

It must belong to this user or root, and nobody else may write to it. A link to a directory is allowed, since a person
may have made one on purpose: the link and its target are checked.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from tasks.shared.errors import InputError

if TYPE_CHECKING:
    from config import LoadedConfig

_REFERENCE = "jobs-dir-unsafe"


def load(config: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a configuration and check its jobs directory; add the warnings of that check to the configuration's.

    Raises:
        config.ConfigError: with all findings.
        InputError: ``jobs-dir-unsafe``.
    """
    from config import Finding, load_config

    loaded = load_config(Path(config), overrides=overrides)
    jobs_dir = loaded.config.jobs_dir
    if not check_jobs_dir(jobs_dir):
        return loaded
    warning = Finding(
        _REFERENCE, "jobs_dir", f"the group can write to the jobs directory {jobs_dir}", level="warning",
        hint=f"chmod g-w {quote(str(jobs_dir.absolute()))}",
    )  # fmt: skip
    return replace(loaded, warnings=(*loaded.warnings, warning))


def check_jobs_dir(jobs_dir: Path) -> bool:
    """Return whether the group can write to the jobs directory, if there is one.

    Raises:
        InputError: ``jobs-dir-unsafe``: somebody else owns it or can write to it.
    """
    path = jobs_dir.absolute()
    ours = {os.geteuid(), 0}
    try:
        link, found = path.lstat(), path.stat()
    except OSError:
        return False  # it will be made, or whoever writes to it names what is wrong
    if link.st_uid not in ours or found.st_uid not in ours:
        raise _unsafe(
            path, f"the jobs directory belongs to another user (user id {found.st_uid})",
            f"set jobs_dir to a directory of your own, or have root run: chown {os.geteuid()} {quote(str(path))}",
        )  # fmt: skip
    if found.st_mode & stat.S_IWOTH:
        raise _unsafe(
            path, "every user of this machine can write to the jobs directory", f"chmod go-w {quote(str(path))}"
        )
    return bool(found.st_mode & stat.S_IWGRP)


def _unsafe(path: Path, message: str, hint: str) -> InputError:
    return InputError(_REFERENCE, message, context=f"jobs_dir: {path}", hint=hint)
