"""A scripted S3 store that records its requests."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from urllib.parse import parse_qs, unquote, urlsplit

from tests.peers.server import Loopback, Raw, Reply, SeenRequest
from tests.peers.services import S3Double

BUCKET = "sluice-demo"
KEY_ID = "AKIDCANARY"
SECRET = "canary-secret-4711"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def refusal(status: int, code: str, extra: str = "", **headers: str) -> Reply:
    """Return an error document as S3 writes it; the text must never show."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>CANARY-TEXT {SECRET}</Message>{extra}</Error>"
    return Reply(status, body.encode(), {"Content-Type": "application/xml", **headers})


Script = Callable[["S3Request"], "Reply | Raw | None"]


class S3Request:
    """One request, as S3 reads it."""

    def __init__(self, seen: SeenRequest) -> None:
        parts = urlsplit(seen.target)
        query = parse_qs(parts.query, keep_blank_values=True)
        self.seen = seen
        self.path = unquote(parts.path)
        self.key = self.path.split("/", 2)[2] if self.path.count("/") > 1 else ""
        self.upload_id = query.get("uploadId", [""])[0]
        self.part = int(query.get("partNumber", ["0"])[0])
        match seen.method, "uploads" in query, bool(self.upload_id):
            case "HEAD", _, _:
                self.name = "HeadObject" if self.key else "HeadBucket"
            case "POST", True, _:
                self.name = "CreateMultipartUpload"
            case "POST", _, True:
                self.name = "CompleteMultipartUpload"
            case "DELETE", _, True:
                self.name = "AbortMultipartUpload"
            case "PUT", _, True:
                self.name = "UploadPart"
            case _:
                self.name = "PutObject"


class ScriptedStore(Loopback):
    """moto's S3; ``script`` may answer differently, and then nothing is stored."""

    def __init__(self, script: Script | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.asked: list[S3Request] = []
        self.s3 = S3Double(BUCKET)
        super().__init__(self._answer, tls=tls)

    def names(self) -> list[str]:
        return [asked.name for asked in self.asked]

    def of(self, name: str) -> list[S3Request]:
        return [asked for asked in self.asked if asked.name == name]

    @property
    def objects(self) -> dict[str, tuple[bytes, dict[str, str]]]:
        """Return the content of each object, and its metadata with its media type."""
        return {key: (body, self.s3.metadata(key)) for key, body in self.s3.objects.items()}

    def _answer(self, seen: SeenRequest) -> Reply | Raw:
        asked = S3Request(seen)
        self.asked.append(asked)
        scripted = self.script(asked) if self.script else None
        return scripted if scripted is not None else self.serve(asked)

    def serve(self, asked: S3Request) -> Reply:
        return self.s3(asked.seen)


scripted = ScriptedStore
"""``with scripted(…) as store``"""
