"""The common auth block of document 1: Basic, OAuth 2.0 client credentials, and an API key beside either.

"Exactly one" of Basic and OAuth is read as "not both": FHIR servers behind a network border often ask for neither.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from config.fields import BaseUrl, ConfigBlock, KeyKind, Secret, Text, problem, read_text

DEFAULT_API_KEY_HEADER = "x-api-key"

BASIC = ("username", "password")
OAUTH2 = ("oauth_issuer_uri", "oauth_client_id", "oauth_client_secret")

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)  # RFC 9110 §5.6.2
_FRAMING = {"host", "content-length", "content-type", "transfer-encoding", "connection", "te", "upgrade", "trailer"}


def _read_username(value: Any) -> str:
    text = read_text(value)
    if ":" in text:  # RFC 7617 §2: the first colon ends the user name
        raise problem("invalid-username", "a Basic Auth user name cannot hold a colon")
    return text


def _read_header_name(value: Any) -> str:
    text = read_text(value)
    if not _TOKEN.fullmatch(text):
        raise problem("invalid-header-name", "is not a valid HTTP header name", "write it like x-api-key")
    if text.lower() in _FRAMING:
        raise problem("invalid-header-name", "names a header that HTTP itself needs", "write it like x-api-key")
    return text


Username = Annotated[str, KeyKind.TEXT, BeforeValidator(_read_username)]
HeaderName = Annotated[str, KeyKind.TEXT, BeforeValidator(_read_header_name)]


class AuthConfig(ConfigBlock):
    """``auth``: Basic Auth or OAuth 2.0 client credentials; an API key can be combined with either.

    The rules that join several keys are in ``config.rules``.
    """

    username: Username | None = Field(None, examples=["sluice"], description="Basic Auth user name")
    password: Secret | None = Field(None, description="Basic Auth password")
    oauth_issuer_uri: BaseUrl | None = Field(
        None,
        examples=["https://login.hospital.example/realms/research"],
        description="OAuth 2.0 issuer. When set, bearer tokens are fetched with client credentials instead of "
        "Basic Auth",
    )
    oauth_client_id: Text | None = Field(None, examples=["sluice"], description="OAuth 2.0 client id")
    oauth_client_secret: Secret | None = Field(None, description="OAuth 2.0 client secret")
    api_key: Secret | None = Field(
        None,
        description="API key, sent in a separate header, so you can use it together with Basic Auth or OAuth 2.0. "
        "`send` ignores it in `s3_upload`",
    )
    api_key_header: HeaderName = Field(
        DEFAULT_API_KEY_HEADER,
        description="Header that carries `api_key`. `Authorization` sends the key as the whole header value, and "
        "only when neither Basic Auth nor OAuth 2.0 is set",
    )

    @property
    def scheme(self) -> Literal["none", "basic", "oauth2"]:
        """Return the scheme of the ``Authorization`` header: OAuth if an issuer is set (document 1, auth rule 2)."""
        if self.oauth_issuer_uri is not None:
            return "oauth2"
        return "basic" if self.username is not None else "none"
