"""The types a key can have: how each is read from text or YAML, and what it refuses.

Every reader takes what a source gives (text from the environment, typed values from YAML) and raises a
``PydanticCustomError`` whose type is the finding's reference. Messages never quote the value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import SplitResult, unquote_plus, urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr
from pydantic_core import PydanticCustomError

from config.duration import LONGEST, DurationError, parse_duration

LARGEST_INTEGER = 2**31 - 1
"""Far above every sensible size, count or number of milliseconds; keeps later arithmetic from overflowing."""


_CLOSE = 0.6


class ConfigBlock(BaseModel):
    """A block of keys: frozen, unknown keys refused, values never shown in pydantic's own errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class KeyKind(Enum):
    """The type of a key as the documentation names it (document 1's words)."""

    TEXT = "string"
    URL = "string (URL)"
    SECRET = "string (secret)"  # noqa: S105 - the name of a type
    PATH = "string (path)"
    CHOICE = "string (choice)"
    DURATION = "duration"
    INTEGER = "int"
    BOOLEAN = "bool"
    LIST = "list of string"
    RULES = "list of rule"


@dataclass(frozen=True)
class Choices:
    """The values a key of kind ``CHOICE`` can have, where its type does not list them."""

    names: tuple[str, ...]


def problem(reference: str, message: str, hint: str | None = None) -> PydanticCustomError:
    """Return an error for a reader to raise; it becomes a finding with the same reference, message and hint."""
    # The texts travel in the context because a template would treat their braces as fields.
    return PydanticCustomError(
        reference,
        "{message}",
        {"message": message, "hint": hint or ""},
    )


def nearest(name: str, known: list[str]) -> str | None:
    """Return the known name closest to ``name``, or ``None`` if none is close."""
    written = name.lower()

    def closeness(candidate: str) -> float:
        """Return the similarity of both names; a common beginning, or being one word of the other, counts extra."""
        ratio = difflib.SequenceMatcher(None, written, candidate).ratio()
        if ratio < _CLOSE and written not in candidate.split("_"):
            return 0.0
        beginning = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(written, candidate, strict=False)))
        return ratio + beginning / (2 * max(len(written), len(candidate), 1))

    best = max(known, key=closeness, default="")
    return best if best and closeness(best) else None


def read_text(value: Any) -> str:
    """Return one line of text."""
    if not isinstance(value, str):
        raise problem("wrong-type", "must be text", "put the value in quotes")
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise problem(
            "control-character",
            "holds a control character, such as a line break",
            "remove it; values read from a file often end in a line break",
        )
    return value


def read_filled_text(value: Any) -> str:
    """Return one line of text that is not blank."""
    text = read_text(value)
    if not text.strip():
        raise problem("out-of-range", "must not be empty")
    return text


def read_secret(value: Any) -> SecretStr:
    """Return a secret: one line of text that is never shown."""
    return SecretStr(read_text(value.get_secret_value() if isinstance(value, SecretStr) else value))


def read_path(value: Any) -> Path:
    """Return a path as written; a relative path starts at the working directory."""
    return value if isinstance(value, Path) else Path(read_text(value))


def read_integer(value: Any) -> int:
    """Return a whole number, also from text."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,12}", value.strip(), re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise problem("wrong-type", "must be a whole number")
    if abs(value) > LARGEST_INTEGER:
        raise problem("out-of-range", f"is beyond {LARGEST_INTEGER}")
    return value


_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def read_boolean(value: Any) -> bool:
    """Return a truth value, also from text (true/false, yes/no, on/off, 1/0 in any case)."""
    if isinstance(value, str):
        value = _BOOLEANS.get(value.strip().lower(), value)
    if not isinstance(value, bool):
        raise problem("wrong-type", "must be true or false")
    return value


def read_duration(value: Any) -> timedelta:
    """Return a duration; see ``config.duration``."""
    if isinstance(value, timedelta):
        if value > LONGEST:
            raise problem("invalid-duration", f"is longer than {LONGEST.days} days")
        return value
    try:
        return parse_duration(read_text(value).strip())
    except DurationError as error:
        raise problem("invalid-duration", str(error), _DURATION_HINT) from None


_DURATION_HINT = "write it like PT30M, PT1.5S or P1DT2H, or like 30m, 1h30m or 500ms"


def read_duration_or_zero(value: Any) -> timedelta:
    """Return a duration or zero (a bare ``0``), which selects the built-in default (document 1) or means "never"."""
    return timedelta(0) if value == "0" else read_duration(value)


def read_url(value: Any) -> str:
    """Return an absolute HTTP or HTTPS URL with a host and without credentials."""
    text = read_text(value)
    _split_url(text)
    return text


def read_base_url(value: Any) -> str:
    """Return a URL to which paths are appended: no query, no fragment, the final slash dropped."""
    text = read_text(value)
    parts = _split_url(text)
    if parts.query or parts.fragment:
        raise problem("invalid-url", "must not have a query or a fragment", "give the URL up to its path")
    return text.rstrip("/?#")


def read_root_url(value: Any) -> str:
    """Return the root of a server to which the client itself appends ``/fhir`` (documents 1 and 3)."""
    text = read_base_url(value)
    if urlsplit(text).path.lower().endswith("/fhir"):
        raise problem(
            "url-ends-in-fhir",
            "must not end in /fhir: the client appends it",
            f"write {text[: -len('/fhir')].rstrip('/')}",
        )
    return text


def _split_url(text: str) -> SplitResult:
    hint = "write it like https://host.example/path"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise problem("invalid-url", "is not a URL", hint) from None
    if "@" in parts.netloc:
        raise problem(
            "url-credentials",
            "holds a user name or password",
            "remove them from the URL; they belong in the auth block of a service that has one",
        )
    if parts.scheme not in {"http", "https"}:
        raise problem("invalid-url", "must begin with http:// or https://", hint)
    if not host or port == 0 or re.search(r"[\s\\<>\"]", text):
        raise problem("invalid-url", "is not a URL with a host", hint)
    return parts


SECRET_PARAMETERS = frozenset({
    "sig", "signature", "token", "access-token", "id-token", "refresh-token", "jwt", "api-key", "apikey", "key",
    "password", "passwd", "pwd", "secret", "client-secret", "code", "auth", "authorization", "x-amz-signature",
    "x-amz-credential", "x-amz-security-token", "x-goog-signature", "x-goog-credential",
})  # fmt: skip
"""Query parameters that carry secrets, in lower case; ``_`` in a name counts as ``-``."""

_SEPARATORS = re.compile(r"[?&;#]")


def secret_parameters(url: str) -> Iterator[tuple[str, str]]:
    """Name and value, both as written, of every parameter in the query or fragment of ``url`` that is a secret.

    A parameter without a value is none. Works on any text and never raises: what is no URL, others say.
    """
    for parameter in _SEPARATORS.split(url)[1:]:
        name, _, value = parameter.partition("=")
        if value and unquote_plus(name).strip().lower().replace("_", "-") in SECRET_PARAMETERS:
            yield name, value


_Choice = TypeVar("_Choice", bound=StrEnum)


def one_of(choices: type[_Choice]) -> Callable[[Any], _Choice]:
    """Return a reader that accepts only the values of ``choices``."""

    def read(value: Any) -> _Choice:
        text = read_text(value)
        try:
            return choices(text)
        except ValueError:
            near = nearest(text, [str(choice) for choice in choices])
            known = ", ".join(choices)
            raise problem(
                "invalid-choice",
                f"must be one of {known}",
                f"did you mean {near}?" if near else None,
            ) from None

    return read


Text = Annotated[str, KeyKind.TEXT, BeforeValidator(read_text)]
FilledText = Annotated[str, KeyKind.TEXT, BeforeValidator(read_filled_text)]
Secret = Annotated[SecretStr, KeyKind.SECRET, BeforeValidator(read_secret)]
FilePath = Annotated[Path, KeyKind.PATH, BeforeValidator(read_path)]
Integer = Annotated[int, KeyKind.INTEGER, BeforeValidator(read_integer)]
Boolean = Annotated[bool, KeyKind.BOOLEAN, BeforeValidator(read_boolean)]
Duration = Annotated[timedelta, KeyKind.DURATION, BeforeValidator(read_duration)]
DurationOrZero = Annotated[timedelta, KeyKind.DURATION, BeforeValidator(read_duration_or_zero)]
Url = Annotated[str, KeyKind.URL, BeforeValidator(read_url)]
BaseUrl = Annotated[str, KeyKind.URL, BeforeValidator(read_base_url)]
RootUrl = Annotated[str, KeyKind.URL, BeforeValidator(read_root_url)]
