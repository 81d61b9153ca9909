"""Types of values: each is read from text, or refused with a message that never quotes the value.

All sources give text, so the same text means the same in each of them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, WithJsonSchema
from pydantic_core import PydanticCustomError, to_jsonable_python

from config.duration import DurationError, parse_duration

MASK = "********"
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


class ConfigBlock(BaseModel):
    """A block of keys: frozen, unknown keys refused, values never shown in pydantic's own errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def problem(reference: str, message: str, hint: str | None = None) -> PydanticCustomError:
    """Return an error that a validator can raise. It becomes a finding with this reference, message and hint."""
    # The texts travel in the context because a template would treat their braces as fields.
    return PydanticCustomError(reference, "{message}", {"message": message, "hint": hint or ""})


def _read_text(value: Any) -> Any:
    if isinstance(value, SecretStr | Path):
        return value
    if not isinstance(value, str):
        raise problem("wrong-type", "must be one value")
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        hint = "remove it; values read from a file often end in a line break"
        raise problem("control-character", "holds a control character, such as a line break", hint)
    return value


def _read_integer(value: Any) -> Any:
    # pydantic reads 1_0 and 1.0 from text, too.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str) or not re.fullmatch(r"[+-]?[0-9]{1,9}", value.strip(), re.ASCII):
        raise problem("wrong-type", "must be a whole number")
    return int(value)


def _read_duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    try:
        return parse_duration(_read_text(value).strip())
    except DurationError as error:
        hint = "write it like PT30M, PT1.5S or P1DT2H, or like 30m, 1h30m or 500ms"
        raise problem("invalid-duration", str(error), hint) from None


def read_list(value: Any) -> Any:
    """Return a list: of text in brackets as YAML reads it, of other text the items between commas."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return [item.strip() for item in value.split(",") if item.strip()]
    try:
        return yaml.load(value, Loader=yaml.BaseLoader)  # noqa: S506 - it makes text only
    except (yaml.YAMLError, RecursionError):
        raise problem("config-yaml", "has a value that is not valid YAML", "put it in quotes") from None


def _read_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        usable = None
    if not usable or re.search(r"[\s\\<>\"]", text):
        hint = "write it like https://host.example/path"
        raise problem("invalid-url", "must be a URL with http:// or https:// and a host", hint)
    if "@" in parts.netloc:
        hint = "remove them; they belong in the auth block of a service that has one"
        raise problem("url-credentials", "is a URL with a user name or password", hint)
    return text


def _read_base_url(text: str) -> str:
    if "?" in text or "#" in text:
        raise problem("invalid-url", "must not have a query or a fragment", "give the URL up to its path")
    return _read_url(text).rstrip("/")


def _read_root_url(text: str) -> str:
    text = _read_base_url(text)
    if urlsplit(text).path.lower().endswith("/fhir"):
        hint = f"write {text[: -len('/fhir')].rstrip('/')}"
        raise problem("url-ends-in-fhir", "must not end in /fhir: the client appends it", hint)
    return text


def _read_header_name(text: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", text, re.ASCII):  # RFC 9110 §5.6.2
        raise problem("invalid-header-name", "is not a valid HTTP header name", "write it like x-api-key")
    return text


def or_else(default: Any) -> AfterValidator:
    """Return a validator that replaces zero by ``default``."""
    return AfterValidator(lambda value: value or default)


_URI = WithJsonSchema({"type": "string", "format": "uri"})
_DURATION = {"type": "string", "pattern": r"^(P(?=[0-9T])[0-9.,DTHMS]+|[0-9.,]+[dhms][0-9.,dhms]*)$"}

Text = Annotated[str, BeforeValidator(_read_text)]
FilledText = Annotated[Text, Field(min_length=1)]
Secret = Annotated[SecretStr, BeforeValidator(_read_text)]
FilePath = Annotated[Path, BeforeValidator(_read_text)]
Url = Annotated[Text, AfterValidator(_read_url), _URI]
BaseUrl = Annotated[Text, AfterValidator(_read_base_url), _URI]
RootUrl = Annotated[Text, AfterValidator(_read_root_url), _URI]
HeaderName = Annotated[Text, AfterValidator(_read_header_name)]
Integer = Annotated[int, BeforeValidator(_read_integer)]
AtLeastOne = Annotated[Integer, Field(ge=1)]
Duration = Annotated[timedelta, BeforeValidator(_read_duration), WithJsonSchema(_DURATION)]
Timeout = Annotated[Duration, Field(gt=timedelta(0))]
DurationOrZero = Annotated[
    timedelta,
    BeforeValidator(lambda value: _read_duration("PT0S" if value == "0" else value)),
    WithJsonSchema({"anyOf": [_DURATION, {"const": 0}]}),
]
StallTimeout = Annotated[DurationOrZero, or_else(MINUTE)]
AsList = BeforeValidator(read_list)
Texts = Annotated[tuple[FilledText, ...], AsList]
Urls = Annotated[tuple[Url, ...], AsList]


def shown(value: Any) -> str:
    """Return a value as written in a file, on one line; secrets are masked, queries of URLs left out."""
    match value:
        case None | ():
            return ""
        case SecretStr():
            return MASK
        case bool():
            return str(value).lower()
        case timedelta():
            return str(to_jsonable_python(value))
        case Path() if not value.is_absolute() and not str(value).startswith("."):
            return f"./{value}"  # shows that it is relative to the working directory
        case (ConfigBlock(), *_):
            return f"{len(value)} rule{'s' if len(value) > 1 else ''}"
        case tuple():
            return f"[{', '.join(map(shown, value))}]"
        case str() if value.startswith(("http://", "https://")):
            return value.partition("?")[0]
    return str(value)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to ``name``, or ``None`` if none is close."""
    return next(iter(difflib.get_close_matches(name.lower(), list(known), 1)), None)
