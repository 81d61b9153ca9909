"""A JSON file that a person names: what can be wrong with it before a look at what it says, with its line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from tasks.shared.errors import InputError

LARGEST_FILE: Final = 64 << 20
"""Bytes. Real ones have a few hundred kilobytes; a data file given by mistake must not fill the memory."""


@dataclass(frozen=True)
class JsonFile:
    """A kind of file: the references of its errors (``InputError``), what it is called, and what else one is told when
    a file is too large to be one.
    """

    unreadable: str
    not_json: str
    name: str
    too_large: str

    def read(self, path: Path) -> bytes:
        """The bytes of the file."""
        try:
            with path.open("rb") as file:
                content = file.read(LARGEST_FILE + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
            raise InputError(self.unreadable, f"{self.name} cannot be read: {reason}", context=str(path)) from None
        if len(content) > LARGEST_FILE:
            message = f"this file is larger than {LARGEST_FILE >> 20} MiB"
            raise InputError(self.unreadable, message, context=str(path), hint=f"is it a data file? {self.too_large}")
        return content

    def parse(self, content: bytes, path: Path, parse: Callable[[bytes], Any]) -> Any:
        """The document in ``content`` as ``parse`` reads it, by ``strict_json``; ``path`` stands in errors."""

        def refuse(message: str, where: str = "", hint: str | None = None) -> NoReturn:
            raise InputError(self.not_json, message, context=f"{path}{where}", hint=hint) from None

        if content.startswith(b"\xef\xbb\xbf"):
            without = "save it as UTF-8 without BOM"
            refuse(f"{self.name} begins with a byte order mark, which JSON does not allow", hint=without)
        try:
            return parse(content)
        except UnicodeDecodeError as error:
            refuse(f"{self.name} is not UTF-8", f":{content.count(10, 0, error.start) + 1}", "save it as UTF-8")
        except UnicodeEncodeError:
            refuse(f"an escape in {self.name} is half of a character", "", r"such as \ud83d without its second half")
        except json.JSONDecodeError as error:
            refuse(f"{self.name} is not valid JSON", f":{error.lineno}")
        except (ValueError, RecursionError):
            never = "NaN, Infinity, huge numbers and endless nesting are not allowed"
            refuse(f"{self.name} is not valid JSON", hint=never)


def strict_json(content: bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The document in ``content``, without the constants that Python takes and JSON does not know."""
    return json.loads(content.decode(), object_pairs_hook=pairs, parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
