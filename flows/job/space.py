"""How much disk a job needs, estimated before it begins; nothing here is an error of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from config import CompressionConfig, PipelineConfig
from tasks import declared
from tasks.shared.import_directory import IMPORT
from tasks.shared.step import Reads

RESERVE = 100_000_000
"""Bytes that must stay free on the disk of the jobs directory besides the data."""

# Document 1, "compression": 3-4x on the fastest level, 4-5x on the default one. The cautious end of each.
_SHRINKS = 3
_GROWS = 5


def needed(
    config: PipelineConfig,
    steps: Sequence[str],
    *,
    directory: Path | None,
    offered: Mapping[str, int],
    job_dir: Path | None,
) -> int:
    """Bytes that must be free for ``steps``, those that are still to do: a copy of the data each, and ``RESERVE``.

    ``directory`` is where a local import reads from, ``offered`` what servers say about the URLs of an HTTP import that
    are still to be fetched, in bytes. What the steps left in ``job_dir`` before is there already. An
    extraction's size is known to nobody before it ran, and counts as nothing.
    """
    outputs = dict.fromkeys(output for name in steps if (output := declared(name).output) is not None)
    if "send" in steps and config.services.send.send_as == "transfer_load":
        outputs["send"] = None  # the zip, which goes when it has arrived
    if not outputs:
        return RESERVE
    if not any(declared(name).reads(config) is Reads.NOTHING for name in steps):
        size = _held(job_dir, IMPORT)
    elif "local_import" in steps and directory is not None:
        size = _local(config, directory)
    elif "http_import" in steps:
        size = _remote(config, offered) + _held(job_dir, IMPORT)
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


def _remote(config: PipelineConfig, offered: Mapping[str, int]) -> int:
    """The sizes that servers gave; one that does not say, or does not answer, counts as nothing."""
    return sum(_stored(size, urlsplit(url).path, config.compression) for url, size in offered.items())
