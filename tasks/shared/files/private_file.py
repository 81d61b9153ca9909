"""Reading a small file of ours that decides something: only if nobody else can have put it there.

No link is followed, no pipe waited for, nothing of another owner believed (``4-product.md`` §4, ``.results/``).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


class NotPrivateError(ValueError):
    """What stands there is no file of ours. Its text says why, and quotes nothing of it."""


def read_private(path: Path, *, most: int | None = None) -> bytes | None:
    """All bytes of a regular file that belongs to whom its directory belongs; ``None`` when there is none.

    Raises:
        NotPrivateError: it is something else, others may write it, or it has more than ``most`` bytes.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        directory = os.open(path.parent, flags | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotPrivateError(f"its directory cannot be opened ({error.strerror})") from None
    try:
        with os.fdopen(os.open(path.name, flags | os.O_NONBLOCK, dir_fd=directory), "rb") as file:
            found, home = os.fstat(file.fileno()), os.fstat(directory)
            if not stat.S_ISREG(found.st_mode):
                raise NotPrivateError("it is no regular file")
            if found.st_uid != home.st_uid or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise NotPrivateError("others may have written it")
            if most is not None and found.st_size > most:
                raise NotPrivateError(f"it has more than {most:,} bytes")
            return file.read() if most is None else file.read(most + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotPrivateError(f"it cannot be read ({error.strerror})") from None
    finally:
        os.close(directory)
