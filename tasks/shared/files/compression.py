"""zstd: the four levels of document 1, recognising it, and decompressing with bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import zstandard

from tasks.shared.errors import DataError, InternalError

_MIB: Final = 1 << 20

LEVELS: Final[dict[str, tuple[int, int, int]]] = {
    # name: (zstd level, worker threads, bytes per job). One worker takes compression off the reading thread; a second
    # one pays from level 5 up. Small jobs keep the workers busy from the start, leave little for the end (1080 instead
    # of 970 MB/s at level 3) and halve the memory of the upper levels: four files at once at `best` stay below 300 MB.
    # Measured on FHIR Bundles, 2 cores: 1330, 1320, 380, 180 MB/s; document 1 asks for 500, 200, 100, 50.
    "fastest": (1, 1, 2 * _MIB),
    "default": (3, 1, 2 * _MIB),
    "better": (7, 2, 2 * _MIB),
    "best": (11, 2, 2 * _MIB),
}

_FRAME = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"  # after a first byte 0x50…0x5f
_WINDOW_LIMIT: Final = 1 << 27
"""Largest window accepted, in bytes: 128 MiB, the limit of the zstd command without ``--long``."""

_READ: Final = 1 << 17


def is_compressed(head: bytes) -> bool:
    """Return whether data that begins with ``head`` (4 bytes or more) is zstd, whatever its name."""
    return head[:4] == _FRAME or (len(head) >= 4 and head[0] & 0xF0 == 0x50 and head[1:4] == _SKIPPABLE)


class ByteReader(Protocol):
    """Source of compressed bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to about ``size`` bytes; empty at the end."""


class ByteWriter(Protocol):
    """Destination of bytes."""

    def write(self, data: bytes, /) -> int:
        """Write all of ``data``."""


class CompressedSink:
    """Compresses written data into ``sink``, at one of document 1's levels. ``close`` ends the frame."""

    def __init__(self, sink: ByteWriter, level: str) -> None:
        number, threads, job_size = LEVELS[level]
        parameters = zstandard.ZstdCompressionParameters.from_level(
            number, threads=threads, job_size=job_size, write_checksum=True
        )
        compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self._writer = compressor.stream_writer(sink, closefd=False)  # type: ignore[arg-type]

    def write(self, data: bytes | memoryview) -> int:
        """Compress ``data``."""
        try:
            self._writer.write(data)
        except zstandard.ZstdError:
            raise InternalError("zst-write", "zstd could not compress") from None
        return len(data)

    def close(self) -> None:
        """Write the rest from the compressor and free its memory (15–20 MB)."""
        try:
            self._writer.close()  # type: ignore[no-untyped-call]
        except zstandard.ZstdError:
            raise InternalError("zst-write", "zstd could not compress") from None


class FrameWalker:
    """Follows the frame and block headers of zstd data, to detect an end inside a frame.

    The decompressor itself stops without a word when its input ends in the middle of a frame. Sizes are taken from
    RFC 8878 §3.1; contents are skipped unread.
    """

    def __init__(self) -> None:
        self._expect: Callable[[bytes], None] = self._magic
        self._need = 4
        self._skip = 0
        self._header = bytearray()
        self._frames = 0
        self._checksum = 0

    @property
    def complete(self) -> bool:
        """Return whether there was at least one frame and the last one is complete."""
        return bool(self._frames) and self._expect == self._magic and not self._header and not self._skip

    def feed(self, data: bytes) -> None:
        """Follow the next bytes. Bytes that are not zstd are left to the decompressor, which raises."""
        position, size = 0, len(data)
        while position < size:
            if self._skip:
                step = min(self._skip, size - position)
                self._skip -= step
                position += step
                continue
            take = self._need - len(self._header)
            self._header += data[position : position + take]
            position += take
            if len(self._header) == self._need:
                header = bytes(self._header)
                self._header.clear()
                self._expect(header)

    def _next(self, expect: Callable[[bytes], None], need: int, skip: int = 0) -> None:
        self._expect, self._need, self._skip = expect, need, skip

    def _frame_ends(self, skip: int) -> None:
        self._frames += 1
        self._next(self._magic, 4, skip)

    def _magic(self, header: bytes) -> None:
        self._next(self._descriptor, 1) if header == _FRAME else self._next(self._skippable, 4)

    def _skippable(self, header: bytes) -> None:
        self._frame_ends(int.from_bytes(header, "little"))

    def _descriptor(self, header: bytes) -> None:
        descriptor = header[0]
        single_segment = bool(descriptor & 0x20)
        self._checksum = 4 if descriptor & 0x04 else 0
        content_size = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
        window = 0 if single_segment else 1
        dictionary = (0, 1, 2, 4)[descriptor & 0x03]
        self._next(self._block, 3, window + dictionary + content_size)

    def _block(self, header: bytes) -> None:
        value = int.from_bytes(header, "little")
        repeated = (value >> 1) & 3 == 1
        size = 1 if repeated else value >> 3
        if value & 1:
            self._frame_ends(size + self._checksum)
        else:
            self._next(self._block, 3, size)


class DecompressedStream:
    """The content of zstd data, in pieces of bounded size: several frames, skippable frames, any ratio.

    ``head`` are the first bytes, if they are read already. ``tee`` sees the compressed bytes as they pass. ``name``
    is used in the errors: ``DataError`` ``zst-truncated`` when the data ends inside a frame, ``zst-corrupt`` when it is
    damaged or needs a window above 128 MiB.
    """

    def __init__(
        self, source: ByteReader, name: str, *, head: bytes = b"", tee: Callable[[bytes], object] | None = None
    ) -> None:
        self._name = name
        self._head = head
        self._source = source
        self._tee = tee
        self._walker = FrameWalker()
        self._reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT).stream_reader(
            self,  # type: ignore[arg-type]
            read_size=_READ,
            read_across_frames=True,
            closefd=False,
        )
        self._ended = False

    def read(self, size: int) -> bytes:
        """Compressed bytes for the decompressor; not for callers, who use ``readinto``."""
        data, self._head = self._head or self._source.read(size), b""
        if data:
            self._walker.feed(data)
            if self._tee is not None:
                self._tee(data)
        return data

    def readinto(self, buffer: bytearray, /) -> int:
        """Fill the buffer from its start with content; how many bytes, 0 at the end."""
        try:
            count = self._reader.readinto(buffer)
        except zstandard.ZstdError:
            raise DataError(
                "zst-corrupt",
                "the zstd data cannot be decompressed: it is damaged, or needs a window above 128 MiB",
                context=self._name,
                hint="check it with `zstd -t`, and fetch or make the file again",
            ) from None
        if not count and not self._walker.complete:
            raise DataError(
                "zst-truncated",
                "the zstd data ends too early: the file was not written or transferred completely",
                context=self._name,
                hint="fetch or make the file again",
            )
        return count

    def close(self) -> None:
        """Free the decompressor."""
        self._reader.close()  # type: ignore[no-untyped-call]
        del self._reader  # it has us as its source: its buffers would wait for the garbage collector
