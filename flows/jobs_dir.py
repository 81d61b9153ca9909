"""The jobs directory: check who can write to it (docs/security.md).

The directory must belong to this user or root, and no other user may write to it. It may be a symbolic link, which a
person may have made on purpose. The link and its target must then belong to this user or root.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from tasks.shared.errors import InputError

if TYPE_CHECKING:
    from config import LoadedConfig


def load(config: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a configuration and check its jobs directory.

    Raises:
        config.ConfigError: with all findings.
        InputError: ``jobs-dir-unsafe``.
    """
    from config import load_config

    loaded = load_config(Path(config), overrides=overrides)
    check_jobs_dir(loaded.config.jobs_dir)
    return loaded


def check_jobs_dir(jobs_dir: Path) -> None:
    """Raise ``InputError`` (``jobs-dir-unsafe``) if another user owns the directory or can write to it."""
    path = jobs_dir.absolute()
    ours = {os.geteuid(), 0}
    try:
        link, found = path.lstat(), path.stat()
    except OSError:
        return  # the directory will be made, or the first write reports what is wrong
    if link.st_uid not in ours or found.st_uid not in ours:
        message = f"the jobs directory belongs to another user (user id {found.st_uid})"
        hint = f"set jobs_dir to a directory of your own, or have root run: chown {os.geteuid()} {quote(str(path))}"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        message = "other users of this machine can write to the jobs directory"
        hint = f"chmod go-w {quote(str(path))}"
    else:
        return
    raise InputError("jobs-dir-unsafe", message, context=f"jobs_dir: {path}", hint=hint)
