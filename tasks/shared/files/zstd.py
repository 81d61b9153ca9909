"""Reading zstd: recognised by its first bytes, decompressed piece by piece; a frame that is cut off is an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import zstandard

from tasks.shared.errors import DataError

_FRAME: Final = b"\x28\xb5\x2f\xfd"
_SKIPPABLE: Final = b"\x2a\x4d\x18"  # behind a first byte 0x50…0x5f
_WINDOW_LIMIT: Final = 1 << 27  # 128 MiB, the limit of the zstd command without --long
_SLICE: Final = 1 << 16


def is_zstd(head: bytes) -> bool:
    """Return whether data that begins with ``head`` (4 bytes or more) is zstd, whatever its name."""
    return head[:4] == _FRAME or (len(head) >= 4 and head[0] & 0xF0 == 0x50 and head[1:4] == _SKIPPABLE)


def decompressed(pieces: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield the content of zstd data, which may have several frames. ``name`` is the file that errors name.

    Raises ``DataError``: ``zst-truncated`` when the data end inside a frame, ``zst-corrupt`` when they are damaged or
    need a window above 128 MiB.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT)
    frame = None
    for piece in pieces:
        for start in range(0, len(piece), _SLICE):
            data = piece[start : start + _SLICE]
            while data:
                frame = frame or decompressor.decompressobj()
                try:
                    content = frame.decompress(data)
                except zstandard.ZstdError:
                    raise DataError(
                        "zst-corrupt", "the zstd data cannot be decompressed: they are damaged, or need a window above "
                        "128 MiB", context=name, hint="check the file with `zstd -t`, and fetch or make it again",
                    ) from None  # fmt: skip
                if content:
                    yield content
                data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise DataError(
            "zst-truncated", "the zstd data end too early: the file was not written or transferred completely",
            context=name, hint="fetch or make the file again",
        )  # fmt: skip
