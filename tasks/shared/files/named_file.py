"""Files that the configuration or the command line names: whether they can be read, and the JSON in them."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from tasks.shared.errors import InputError, SluiceError

LARGEST_FILE: Final = 64 << 20
"""Bytes. Real ones have a few hundred kilobytes; a data file given by mistake must not fill the memory."""

_HINT: Final = "check the path; a relative one starts at the working directory"


def file_findings(named_by: str, path: Path) -> Iterator[SluiceError]:
    """Yield an error if a file named by the configuration or the command line is unreadable or empty."""
    context = f"{named_by}: {path}"
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            yield InputError("file-unreadable", "not a regular file", context=context, hint="name the file itself")
            return
        with path.open("rb") as file:
            if not file.read(1):
                yield InputError("file-empty", "the file is empty", context=context)
    except (FileNotFoundError, NotADirectoryError):
        yield InputError("file-not-found", "there is no such file", context=context, hint=_HINT)
    except (OSError, ValueError) as error:
        yield InputError("file-unreadable", f"the file cannot be read: {_reason(error)}", context=context)


def _reason(error: OSError | ValueError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"


@dataclass(frozen=True)
class JsonFile:
    """A kind of file: how the references of its errors (``InputError``) begin, its name for people, and the hint for a
    file that is too large.
    """

    kind: str
    name: str
    too_large: str

    def read(self, path: Path) -> bytes:
        """Return the bytes of the file."""
        try:
            if path.exists() and not path.is_file():  # a pipe would be waited for, and be empty for ``continue``
                raise InputError(f"{self.kind}-unreadable", f"{self.name} is no regular file", context=str(path))
            with path.open("rb") as file:
                content = file.read(LARGEST_FILE + 1)
        except (OSError, ValueError) as error:
            message = f"{self.name} cannot be read: {_reason(error)}"
            raise InputError(f"{self.kind}-unreadable", message, context=str(path)) from None
        if len(content) > LARGEST_FILE:
            message, hint = f"this file is larger than {LARGEST_FILE >> 20} MiB", f"is it a data file? {self.too_large}"
            raise InputError(f"{self.kind}-unreadable", message, context=str(path), hint=hint)
        return content

    def parse(self, content: bytes, path: Path, parse: Callable[[bytes], Any]) -> Any:
        """Return the document in ``content`` as ``parse`` reads it, by ``strict_json``; errors name ``path``."""

        def refuse(message: str, where: str = "", hint: str | None = None) -> NoReturn:
            raise InputError(f"{self.kind}-not-json", message, context=f"{path}{where}", hint=hint) from None

        if content.startswith(b"\xef\xbb\xbf"):
            without = "save it as UTF-8 without BOM"
            refuse(f"{self.name} begins with a byte order mark, which JSON does not allow", hint=without)
        try:
            return parse(content)
        except UnicodeDecodeError as error:
            refuse(f"{self.name} is not UTF-8", f":{content.count(10, 0, error.start) + 1}", "save it as UTF-8")
        except json.JSONDecodeError as error:
            refuse(f"{self.name} is not valid JSON", f":{error.lineno}")
        except (ValueError, RecursionError):
            never = "NaN, Infinity, huge numbers and endless nesting are not allowed"
            refuse(f"{self.name} is not valid JSON", hint=never)


def strict_json(content: bytes) -> Any:
    """Return the document in ``content``; constants that only Python accepts are errors."""
    return json.loads(content.decode(), parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
