"""Result files over HTTP: HEAD, GET, ranges, validators (document 2, "Result file access")."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from starlette.responses import Response, StreamingResponse

from deployments.sandbox.common.request import FhirProblem, FhirRequest
from deployments.sandbox.extraction.task import UUID

OUTPUT = "output"
"""First path segment of result files."""
_PIECE = 1 << 18
_NAME = re.compile(
    rf"(?:{UUID.pattern}(?:_consent)?|core)\.ndjson"
    r"|reports/(?:job-summary\.json|resource-exclusions\.csv|patient-exclusions\.csv)"
)
_TYPES = {".ndjson": "application/fhir+ndjson", ".csv": "text/csv; charset=utf-8", ".json": "application/json"}
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class UrlStyle(StrEnum):
    """Form of the URLs of files in the manifest (document 2, "Result file access")."""

    ABSOLUTE = "absolute"
    PATH = "path"
    HOST = "host"
    """Host and path without a scheme."""


@dataclass(frozen=True)
class ResultUrls:
    """URLs of result files for the client at ``root``."""

    root: str
    style: UrlStyle = UrlStyle.ABSOLUTE

    def of(self, job: str, name: str) -> str:
        """Return the URL of one file of a job."""
        path = f"/{OUTPUT}/{job}/{name}"
        match self.style:
            case UrlStyle.PATH:
                return urlsplit(self.root).path + path
            case UrlStyle.HOST:
                return self.root.partition("://")[2] + path
        return self.root + path


class ResultFileServer:
    """Serves the result files below one directory, by job."""

    def __init__(self, directory: Path, availability_delay: int = 0) -> None:
        """Set the directory. ``availability_delay``: number of requests for each file that are answered 404 first."""
        self._directory = directory
        self._delay = availability_delay
        self._asked: Counter[str] = Counter()

    def answer(self, request: FhirRequest) -> Response:
        """Return a file, or the requested part. Raises ``FhirProblem`` 404 or 416.

        Opens the file before the head is sent, unlike Starlette's ``FileResponse``: if the job is deleted at this
        moment, the answer is the whole file or 404.
        """
        path = self._find(request.path_params["job"], request.path_params["name"])
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise _no_file() from None
        with contextlib.ExitStack() as opened:
            opened.enter_context(file)
            facts = os.fstat(file.fileno())
            headers = {
                "content-type": _TYPES[path.suffix],
                "accept-ranges": "bytes",
                "etag": f'"{facts.st_size:x}-{facts.st_mtime_ns:x}"',
                "last-modified": formatdate(facts.st_mtime, usegmt=True),
            }
            piece = _requested_range(request, facts.st_size, headers)
            start, end = piece or (0, facts.st_size)
            if piece is not None:
                headers["content-range"] = f"bytes {start}-{end - 1}/{facts.st_size}"
            headers["content-length"] = str(end - start)
            status = 200 if piece is None else 206
            if request.method == "HEAD":
                return Response(status_code=status, headers=headers)
            opened.pop_all()
        return StreamingResponse(_pieces(file, start, end), status, headers)

    def _find(self, job: str, name: str) -> Path:
        path = self._directory / job / name if UUID.fullmatch(job) and _NAME.fullmatch(name) else None
        if path is None or not path.is_file():
            raise _no_file()
        key = str(path)
        if self._asked[key] < self._delay:
            self._asked[key] += 1
            raise FhirProblem(404, "not-found", "The file is not available yet.")
        return path


def _no_file() -> FhirProblem:
    return FhirProblem(404, "not-found", "There is no such file.")


def _pieces(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    with file:
        file.seek(start)
        left = end - start
        while left > 0 and (part := file.read(min(_PIECE, left))):
            left -= len(part)
            yield part


def _requested_range(request: FhirRequest, size: int, headers: dict[str, str]) -> tuple[int, int] | None:
    """Return the start and end (exclusive) of the requested Range in bytes, or None for the whole file.

    Raises ``FhirProblem`` 416.
    """
    match = _RANGE.fullmatch(request.headers.get("range", "").replace(" ", ""))
    tag = headers["etag"]
    if match is None or request.headers.get("if-range", tag) not in (tag, headers["last-modified"]):
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
    return start, end
