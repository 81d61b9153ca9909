"""Result files over HTTP: HEAD, GET, ranges, validators (document 2, "Result file access")."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import formatdate
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from deployments.sandbox.common.answering import Call, FhirProblem
from deployments.sandbox.common.exchange import Send
from deployments.sandbox.extraction.task import UUID

OUTPUT = "output"
"""The first path segment of result files."""
_PIECE = 1 << 18
_NAME = re.compile(
    rf"(?:{UUID.pattern}(?:_consent)?|core)\.ndjson"
    r"|reports/(?:job-summary\.json|resource-exclusions\.csv|patient-exclusions\.csv)"
)
_TYPES = {".ndjson": "application/fhir+ndjson", ".csv": "text/csv; charset=utf-8", ".json": "application/json"}
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class UrlStyle(StrEnum):
    """How the manifest writes the URLs of files (document 2, "Result file access")."""

    ABSOLUTE = "absolute"
    PATH = "path"
    HOST = "host"
    """Host and path without a scheme."""


@dataclass(frozen=True)
class ResultUrls:
    """The URLs of result files, as the client at ``root`` sees them."""

    root: str
    style: UrlStyle = UrlStyle.ABSOLUTE

    def of(self, job: str, name: str) -> str:
        """The URL of one file of a job."""
        path = f"/{OUTPUT}/{job}/{name}"
        match self.style:
            case UrlStyle.PATH:
                return urlsplit(self.root).path + path
            case UrlStyle.HOST:
                return self.root.partition("://")[2] + path
        return self.root + path


@dataclass(frozen=True)
class _Piece:
    start: int
    end: int
    """Exclusive."""


class ResultFiles:
    """The files below one directory, by job."""

    def __init__(self, directory: Path, availability_delay: int = 0) -> None:
        """``availability_delay``: how many requests for each file are answered 404 first."""
        self._directory = directory
        self._delay = availability_delay
        self._asked: Counter[str] = Counter()

    async def serve(self, call: Call, send: Send) -> None:
        """Answer a request for a file. Raises ``FhirProblem`` 404, 405 or 416."""
        if not call.is_read:
            raise FhirProblem(405, "not-supported", "Files are read with GET and HEAD.")
        path = self._find(call.segments)
        try:
            opened = path.open("rb")
        except FileNotFoundError:
            # Somebody deletes the job at this moment.
            raise _no_file() from None
        with opened as file:
            facts = os.fstat(file.fileno())
            size = facts.st_size
            tag = f'"{size:x}-{facts.st_mtime_ns:x}"'
            headers = {
                "content-type": _TYPES[path.suffix],
                "accept-ranges": "bytes",
                "etag": tag,
                "last-modified": formatdate(facts.st_mtime, usegmt=True),
            }
            piece = _wanted(call, size, tag, headers["last-modified"])
            if piece is None:
                status, piece = 200, _Piece(0, size)
            else:
                status = 206
                headers["content-range"] = f"bytes {piece.start}-{piece.end - 1}/{size}"
            headers["content-length"] = str(piece.end - piece.start)
            pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": pairs})
            left = 0 if call.method == "HEAD" else piece.end - piece.start
            file.seek(piece.start)
            while left > 0 and (part := file.read(min(_PIECE, left))):
                left -= len(part)
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _find(self, segments: Sequence[str]) -> Path:
        name = "/".join(segments[2:])
        known = len(segments) > 2 and UUID.fullmatch(segments[1]) and _NAME.fullmatch(name)
        path = self._directory / segments[1] / name if known else None
        if path is None or not path.is_file():
            raise _no_file()
        key = str(path)
        if self._asked[key] < self._delay:
            self._asked[key] += 1
            raise FhirProblem(404, "not-found", "The file is not available yet.")
        return path


def _no_file() -> FhirProblem:
    return FhirProblem(404, "not-found", "There is no such file.")


def _wanted(call: Call, size: int, tag: str, modified: str) -> _Piece | None:
    """The part that a Range asks for; None for the whole file. Raises ``FhirProblem`` 416."""
    match = _RANGE.fullmatch(call.headers.get("range", "").replace(" ", ""))
    if match is None or call.headers.get("if-range", tag) not in (tag, modified):
        return None
    first, last = match.groups()
    if first:
        start, end = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    elif last:
        start, end = max(0, size - int(last)), size
    else:
        return None
    if start >= size or start >= end:
        raise FhirProblem(416, "value", f"The file has {size} bytes.", headers={"content-range": f"bytes */{size}"})
    return _Piece(start, end)
