"""Check imported data line by line while they are stored (docs/steps.md).

Each line must be a JSON object with a ``resourceType``, in UTF-8. The whole line is parsed, but only few members become
Python values, so the check costs less than storing the data. No error quotes the content.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

import msgspec

from tasks.shared.errors import DataError
from tasks.shared.fhir.resource import TYPE
from tasks.shared.files.ndjson import is_blank, line_too_large
from tasks.shared.files.zstd import is_zstd

_BOM: Final = b"\xef\xbb\xbf"
_ARCHIVES: Final = (b"\x1f\x8b", b"PK\x03\x04", b"\xfd7zXZ", b"BZh")  # gzip, zip, xz, bzip2
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_DATA_TYPES: Final = re.compile(r"application/(x-ndjson|ndjson|fhir\+\w+|zip|gzip|zstd)", re.IGNORECASE)
_SERVER: Final = "see the log of the server that made this file, and fetch it again"
_ONE_LINE: Final = "NDJSON holds one JSON object per line"


class _Resource(msgspec.Struct, rename="camel", gc=False):
    resource_type: Any = None
    issue: Any = None


class _Search(msgspec.Struct, gc=False):
    mode: Any = None


class _Entry(msgspec.Struct, gc=False):
    resource: _Resource | None = None
    search: _Search | None = None


class _Line(msgspec.Struct, rename="camel", gc=False):
    """The members of a line that show whether it is a resource, and whether its source was complete."""

    resource_type: Any = None
    entry: list[_Entry] | None = None
    type: Any = None
    total: Any = None
    link: Any = None
    issue: Any = None
    content_type: Any = None
    export_id: Any = None
    event_id: Any = None


_line = msgspec.json.Decoder(_Line)


class ExportLogError(DataError):
    """The file is the log of an export tool, which is not imported."""


class LineCheck:
    """Checks NDJSON that arrives in pieces of any size, and counts. Errors are ``DataError``.

    Errors name the line as ``name:line``; ``most`` is the limit of a line in bytes. ``lines`` counts lines that are not
    blank, ``types`` counts these by resource type. ``resources`` and ``patients`` include the entries of Bundles.
    ``outcomes`` counts OperationOutcomes that are lines of their own.
    """

    def __init__(self, name: str, most: int) -> None:
        self.lines = 0
        self.resources = 0
        self.patients = 0
        self.bytes = 0
        self.outcomes = 0
        self.types: Counter[str] = Counter()
        self._name = name
        self._most = most
        self._number = 1
        self._begun: list[memoryview] = []
        self._size = 0

    def feed(self, piece: bytes) -> None:
        """Check the next piece."""
        if not self.bytes:
            self._check_head(piece)
        self.bytes += len(piece)
        start, view = 0, memoryview(piece)  # most lines are read where they are, without a copy
        while (end := piece.find(b"\n", start)) >= 0:
            self._check(b"".join([*self._begun, view[start:end]]) if self._begun else view[start:end])
            self._begun, self._size = [], 0
            self._number += 1
            start = end + 1
        if start < len(piece):
            self._begun.append(view[start:])
            self._size += len(piece) - start
            if self._size > self._most:
                raise line_too_large(self._where, self._most)

    def finish(self) -> None:
        """Check a last line without line feed. Raises ``DataError`` (``empty-file``) if there was no line."""
        self._check(b"".join(self._begun))
        if not self.lines:
            hint = "this can be the result of an interrupted export; leave the file out if it is meant to be empty"
            raise DataError("empty-file", "this file contains no resource", context=self._name, hint=hint)

    @property
    def _where(self) -> str:
        return f"{self._name}:{self._number}"

    def _check_head(self, head: bytes) -> None:
        """Raise an error if the first bytes show that the file cannot be NDJSON."""
        if head.startswith(_BOM):
            raise self._error("bom", "the file begins with a byte order mark", "save it as UTF-8 without one")
        if head.startswith(_ARCHIVES) or is_zstd(head):
            hint = "unpack it first; NDJSON may be plain or compressed once with zstd"
            raise self._error("archive", "an archive or a compressed file where NDJSON is expected", hint)
        if head.lstrip().startswith(b"<"):
            raise self._not_json(head)

    def _check(self, line: bytes | memoryview) -> None:
        if not line or is_blank(line):
            return
        try:
            str(line, "utf-8")
            read = _line.decode(line)
        except msgspec.ValidationError:
            raise self._unusual(bytes(line)) from None
        except UnicodeDecodeError:
            raise self._error("not-utf8", "the line is not valid UTF-8", "FHIR data must be UTF-8") from None
        except (msgspec.DecodeError, RecursionError):
            raise self._not_json(bytes(line)) from None
        kind = read.resource_type
        if not isinstance(kind, str) or TYPE.fullmatch(kind) is None:
            raise self._no_resource(read)
        self.lines += 1
        self.types[kind] += 1
        if kind == "Bundle":
            self.resources += len(read.entry or ())
            self._check_bundle(read)
            return
        self.resources += 1
        self.patients += kind == "Patient"
        if kind == "OperationOutcome":
            self.outcomes += 1
            self._check_outcome(read.issue)
        elif kind == "Binary" and _DATA_TYPES.match(str(read.content_type)):
            hint = "take the data out of the Binary, and import them as NDJSON"
            raise self._error("data-in-binary", "a Binary holds data in a wrapper, which no step would look into", hint)

    def _unusual(self, line: bytes) -> DataError:
        """Raise the error for a line that is no object, or whose ``entry`` is no list of objects."""
        if not line.lstrip().startswith(b"{"):
            hint = "write one resource per line instead" if line.lstrip().startswith(b"[") else _ONE_LINE
            raise self._error("not-object", "the line is JSON, but not an object", hint)
        raise self._error("not-a-resource", "the entry of the Bundle is not a list of objects", _SERVER)

    def _check_bundle(self, read: _Line) -> None:
        if read.type == "searchset":
            links = read.link if isinstance(read.link, list) else ()
            more = any(isinstance(link, dict) and link.get("relation") == "next" for link in links)
            if more or (type(read.total) is int and read.total > self._matches(read)):
                hint = "import all pages of the search; if a part is intended, remove total and the next link"
                what = "the search result is incomplete: it has a next page, or fewer entries than its total"
                raise self._error("source-incomplete", what, hint)
        for entry in read.entry or ():
            if entry.resource is not None:
                self.patients += entry.resource.resource_type == "Patient"
                if entry.resource.resource_type == "OperationOutcome":
                    self._check_outcome(entry.resource.issue)

    def _matches(self, read: _Line) -> int:
        """Return how many entries of a searchset are hits of the search, not included resources or outcomes."""
        searches = [entry.search for entry in read.entry or ()]
        return sum(1 for search in searches if search is None or search.mode not in ("include", "outcome"))

    def _check_outcome(self, issues: Any) -> None:
        found = issues if isinstance(issues, list) else ()
        severities = {issue.get("severity") for issue in found if isinstance(issue, dict)}
        if severities & {"error", "fatal"}:
            what = "an OperationOutcome with an error: the server could not return all data"
            raise self._error("source-error", what, _SERVER)

    def _not_json(self, line: bytes) -> DataError:
        if line.lstrip().startswith(b"<"):
            hint = "this may be a login page or an error page; open the address in a browser"
            return self._error("not-json", "an HTML or XML document where NDJSON is expected", hint)
        if _SURROGATE.search(line):
            what = "the line has half of a surrogate pair (\\ud800 to \\udfff), which is not a character"
            return self._error("unpaired-surrogate", what, "the text was cut inside a character at its source")
        hint = f"{_ONE_LINE}; a pretty-printed document does not qualify"
        return self._error("not-json", "the line is not valid JSON", hint)

    def _no_resource(self, read: _Line) -> DataError:
        if read.export_id is not None and read.event_id is not None:
            return ExportLogError("export-log", "this is the log of an export, not data", context=self._where)
        hint = "a server may have written an error in place of the data; see its log"
        return self._error("not-a-resource", "not a FHIR resource: an object with a resourceType is expected", hint)

    def _error(self, reference: str, message: str, hint: str) -> DataError:
        return DataError(reference, message, context=self._where, hint=hint)
