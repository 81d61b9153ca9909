"""How much disk a job needs, estimated before it begins; nothing here is an error of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from config import CompressionConfig, PipelineConfig
from tasks import CATALOGUE
from tasks.shared.errors import NetworkError, SluiceError
from tasks.shared.http import ServiceClient
from tasks.shared.imports import IMPORT

RESERVE = 100_000_000
"""Bytes that must stay free on the disk of the jobs directory besides the data."""

# Document 1, "compression": 3-4x on the fastest level, 4-5x on the default one. The cautious end of each.
_SHRINKS = 3
_GROWS = 5
_SECONDS = 5.0
# A signed link is often good for GET alone, and some servers know no HEAD.
_NO_HEAD = frozenset({403, 404, 405, 501})


def needed(
    config: PipelineConfig, steps: Sequence[str], *, directory: Path | None, url: str | None, job_dir: Path | None
) -> int:
    """Bytes that must be free for ``steps``, those that are still to do: a copy of the data each, and ``RESERVE``.

    ``directory`` and ``url`` are where a local and an HTTP import read from. What the steps left in ``job_dir`` before
    is there already. An extraction's size is known to nobody before it ran, and counts as nothing.
    """
    outputs = dict.fromkeys(output for name in steps if (output := CATALOGUE[name].output) is not None)
    if "send" in steps and config.services.send.send_as == "transfer_load":
        outputs["send"] = None  # the zip, which goes when it has arrived
    if not outputs:
        return RESERVE
    if not any(CATALOGUE[name].is_import for name in steps):
        size = _held(job_dir, IMPORT)
    elif "local_import" in steps and directory is not None:
        size = _local(config, directory)
    elif "http_import" in steps:
        size = _remote(config, (url,) if url is not None else config.services.http_import.urls)
    else:
        size = 0
    return RESERVE + sum(max(size - _held(job_dir, output), 0) for output in outputs)


def _held(job_dir: Path | None, folder: str) -> int:
    """Bytes in a directory of the job; unfinished files count too, because the step replaces them."""
    if job_dir is None:
        return 0
    try:
        with os.scandir(job_dir / folder) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.is_file(follow_symlinks=False))
    except OSError:
        return 0  # not there yet, or for the step itself to report


def _local(config: PipelineConfig, directory: Path) -> int:
    from tasks.local_import.scan import scan

    # What the importer takes, nothing else: the jobs directory may lie inside.
    recursive = config.services.local_import.recursive
    found = scan(directory, recursive=recursive, exclude=config.jobs_dir.absolute())
    return sum(_stored(file.size, file.path.name, config.compression) for file in found.files)


def _stored(size: int, name: str, compression: CompressionConfig) -> int:
    """What a file of ``size`` bytes takes in the job."""
    if name.lower().endswith(".zst"):
        return size if compression.enabled else size * _GROWS
    return size // _SHRINKS if compression.enabled else size


def _remote(config: PipelineConfig, urls: Iterable[str]) -> int:
    """The sizes that servers give; one that does not say, or does not answer, counts as nothing."""
    size = 0
    silent: set[str] = set()
    once = config.retry.model_copy(update={"max_attempts": 1})
    try:
        with ServiceClient("http_import", tls=config.tls, retry=once, timeout=_SECONDS) as client:
            for url in urls:
                parts = urlsplit(url)
                if parts.netloc in silent:
                    continue
                try:
                    size += _stored(_length(client, url), parts.path, config.compression)
                except NetworkError:
                    silent.add(parts.netloc)
    except (SluiceError, ValueError):
        return size  # a bundle, a proxy or a URL that cannot be used: the check of the import reports it
    return size


def _length(client: ServiceClient, url: str) -> int:
    for method in ("HEAD", "GET"):
        try:
            with client.stream(method, url, operation="size") as response:
                length = response.headers.get("content-length", "")
                if length.isascii() and length.isdecimal():
                    return int(length)
        except NetworkError:
            raise
        except SluiceError as error:
            if error.status not in _NO_HEAD:
                return 0
    return 0
