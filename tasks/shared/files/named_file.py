"""JSON files that the configuration or the command line names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from tasks.shared.errors import InputError

LARGEST_FILE: Final = 64 << 20
"""Limit in bytes. Real files have a few hundred kB; a data file given by mistake must not fill the memory."""


@dataclass(frozen=True)
class JsonFile:
    """A kind of file: the prefix of its error references, and its name for people. Errors are ``InputError``."""

    kind: str
    name: str

    def read(self, path: Path) -> bytes:
        """Return the bytes of the file."""
        try:
            if path.exists() and not path.is_file():  # reading a pipe may block, and ``continue`` finds it empty
                raise InputError(f"{self.kind}-unreadable", f"{self.name} is not a regular file", context=str(path))
            with path.open("rb") as file:
                content = file.read(LARGEST_FILE + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not a usable path"
            message = f"{self.name} cannot be read: {reason}"
            raise InputError(f"{self.kind}-unreadable", message, context=str(path)) from None
        if len(content) > LARGEST_FILE:
            message = f"{self.name} is larger than {LARGEST_FILE >> 20} MiB"
            raise InputError(f"{self.kind}-unreadable", message, context=str(path), hint="is it a data file?")
        return content

    def parse(self, content: bytes, path: Path, parse: Callable[[bytes], Any]) -> Any:
        """Return ``parse(content)``, where ``parse`` raises the errors of ``strict_json``; errors name ``path``."""

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
