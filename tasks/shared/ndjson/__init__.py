"""NDJSON files: read, write, check and take in, plain or zstd-compressed.

The only package that knows zstandard. Everything that reads or writes data files of a job goes through the names
below.

* ``read_lines`` yields the lines of a file, whichever form it has; ``numbered_lines`` with their numbers;
  ``lines_with_long`` keeps a line that is too long on disk.
* ``NdjsonWriter`` makes a new data file; it gets its final name only when it is complete.
* ``Intake`` takes a foreign file in unchanged, and checks and counts it on the way.
* ``data_files`` lists a step's data files, ``core.ndjson`` first.
"""

from tasks.shared.ndjson.check import LineCheck
from tasks.shared.ndjson.compression import DecompressedStream, is_compressed
from tasks.shared.ndjson.facts import FileFacts, FileLedger, facts_of
from tasks.shared.ndjson.files import (
    CORE,
    NDJSON,
    PART,
    ZST,
    PartFile,
    base_name,
    data_file_name,
    data_files,
    existing_file,
    is_consent_name,
    is_ndjson_name,
    storage_error,
    sync_directory,
)
from tasks.shared.ndjson.intake import Intake
from tasks.shared.ndjson.long import LongLine, lines_with_long
from tasks.shared.ndjson.reader import numbered_lines, read_lines
from tasks.shared.ndjson.writer import NdjsonWriter

__all__ = [
    "CORE",
    "NDJSON",
    "PART",
    "ZST",
    "DecompressedStream",
    "FileFacts",
    "FileLedger",
    "Intake",
    "LineCheck",
    "LongLine",
    "NdjsonWriter",
    "PartFile",
    "base_name",
    "data_file_name",
    "data_files",
    "existing_file",
    "facts_of",
    "is_compressed",
    "is_consent_name",
    "is_ndjson_name",
    "lines_with_long",
    "numbered_lines",
    "read_lines",
    "storage_error",
    "sync_directory",
]
