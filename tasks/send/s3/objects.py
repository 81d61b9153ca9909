"""One file becomes one object: skipped when it is there, in one request up to 64 MiB, in parts above.

What is there is told by HEAD: same size and same ``sha256`` in the metadata (document 3 §7). After an upload HEAD is
asked too, and its ETag must be the one that the upload was answered with. An upload in parts that
fails or is stopped is aborted; what a killed process left is aborted by the next run, and the file is begun anew.
Parts are small, so that a repeat loses little and one large file uses all connections.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tasks.send.s3.keys import content_type
from tasks.send.s3.manifest import Uploaded, timestamp
from tasks.send.s3.refusal import UploadGoneError
from tasks.send.s3.source import OpenSource, Source
from tasks.send.s3.store import CONNECTIONS, Bucket, Part, Stored, Unfinished
from tasks.shared.errors import ServiceBusyError, SluiceError
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop
from tasks.shared.work import for_each

log = logging.getLogger("sluice.send")

MIB: Final = 1024 * 1024
_MOST_PARTS: Final = 10_000  # S3
_LOOK: Final = 0.25  # seconds between two looks at the stop


@dataclass(frozen=True)
class Sizes:
    """Bytes. Files above ``threshold`` go in parts of ``part`` or, when there would be too many, larger ones."""

    threshold: int = 64 * MIB
    part: int = 32 * MIB

    def divides(self, size: int) -> bool:
        """Whether a file of ``size`` bytes goes in parts."""
        return size > self.threshold

    def part_size(self, size: int) -> int:
        """The size of the parts of a file of ``size`` bytes."""
        least = -(-size // _MOST_PARTS)
        return max(self.part, -(-least // MIB) * MIB)


class Uploader:
    """Uploads files into one bucket; thread-safe. At most ``CONNECTIONS`` files or parts are under way at once."""

    def __init__(self, bucket: Bucket, progress: Meter, sizes: Sizes) -> None:
        self._bucket = bucket
        self._progress = progress
        self._sizes = sizes
        self._slots = threading.Semaphore(CONNECTIONS)

    def upload(self, source: Source, key: str, stop: Stop) -> tuple[Uploaded, bool]:
        """Bring ``source`` into the bucket as ``key``; the object, and whether anything had to be sent.

        Raises what ``Bucket`` raises, ``StorageError``, and ``DataError`` when the file changes meanwhile.
        """
        with OpenSource(source) as file:
            way = self._large if self._sizes.divides(source.size) else self._small
            try:
                done = way(file, key, stop)
            except ServiceBusyError:
                file.verify()  # a digest that does not agree, because somebody writes to the file
                raise
            file.verify()
        self._progress.add(files=1)
        return done

    def _small(self, file: OpenSource, key: str, stop: Stop) -> tuple[Uploaded, bool]:
        source = file.source
        with self._slot(stop):
            digests = file.digests(stop.check, md5=self._bucket.wants_md5)
            there = self._there(source, key, digests.sha256, stop)
            if there is None:
                kind = content_type(source.name)
                etag = self._bucket.put(key, file, content_type=kind, digests=digests, stop=stop)
                self._bucket.compare(key, source.size, digests.sha256, etag, stop, md5=digests.md5)
        self._progress.add(bytes=source.size)
        if there is not None:
            return _uploaded(source, key, digests.sha256, there.etag, there.modified), False
        return _uploaded(source, key, digests.sha256, etag), True

    def _large(self, file: OpenSource, key: str, stop: Stop) -> tuple[Uploaded, bool]:
        source = file.source
        with self._slot(stop):
            sha256 = file.digests(stop.check, md5=False).sha256
            there = self._there(source, key, sha256, stop)
        if there is not None:
            self._progress.add(bytes=source.size)
            return _uploaded(source, key, sha256, there.etag, there.modified), False
        upload_id = self._bucket.begin(key, content_type=content_type(source.name), sha256=sha256, stop=stop)
        try:
            parts = self._parts(file, key, upload_id, stop)
            file.verify()  # before the object appears
            try:
                etag = self._bucket.complete(key, upload_id, parts, stop)
            except UploadGoneError:
                # A repeated request whose first answer was lost: then the object is there.
                there = self._there(source, key, sha256, stop)
                if there is None:
                    raise
                etag = there.etag
        except BaseException:
            abort(self._bucket, Unfinished(key, upload_id))
            raise
        with self._slot(stop):
            self._bucket.compare(key, source.size, sha256, etag, stop)
        return _uploaded(source, key, sha256, etag), True

    def _parts(self, file: OpenSource, key: str, upload_id: str, stop: Stop) -> list[Part]:
        size = self._sizes.part_size(file.source.size)
        done: list[Part] = []

        def one(start: int, stop: Stop) -> None:
            length = min(size, file.source.size - start)
            with self._slot(stop):
                number = start // size + 1
                done.append(self._bucket.put_part(key, upload_id, number, file, start, length, stop))
            self._progress.add(bytes=length)

        for_each(range(0, file.source.size, size), one, threads=CONNECTIONS, stop=stop)
        return done

    def _there(self, source: Source, key: str, sha256: str, stop: Stop) -> Stored | None:
        stored = self._bucket.head(key, stop)
        same = stored is not None and stored.size == source.size and stored.sha256 == sha256 and stored.etag
        return stored if same else None

    @contextmanager
    def _slot(self, stop: Stop) -> Iterator[None]:
        while not self._slots.acquire(timeout=_LOOK):
            stop.check()
        try:
            yield
        finally:
            self._slots.release()


def abort(bucket: Bucket, upload: Unfinished) -> None:
    """Remove an unfinished upload, best effort: the next run of the job tries again."""
    try:
        bucket.abort(upload)
    except UploadGoneError:
        pass
    except SluiceError as error:
        log.warning("send: the unfinished upload of %s was not removed (%s)", upload.key, error.reference)


def _uploaded(source: Source, key: str, sha256: str, etag: str, moment: datetime | None = None) -> Uploaded:
    return Uploaded(key, source.size, sha256, etag, timestamp(moment or datetime.now(UTC)))
