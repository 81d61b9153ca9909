"""The files of a directory as a reviewer approves them: name, size and SHA-256 of each (``design.md``, D11)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.shared.errors import storage_errors
from tasks.shared.file_work import sha256_of


@dataclass(frozen=True)
class ManifestFile:
    """One file: its size in bytes and its SHA-256 (hex), as it is stored."""

    size: int
    sha256: str


Manifest = Mapping[str, ManifestFile]
"""Path below the directory → file."""


def manifest_of(directory: Path, files: Iterable[Path], known: Mapping[str, ManifestFile] | None = None) -> Manifest:
    """Return the manifest of files below a directory. ``known`` are those whose digest is recorded: they are hashed
    again only when their size differs. Raises ``StorageError``."""
    found = {}
    for path in sorted(files):
        name = path.relative_to(directory).as_posix()
        with storage_errors(path):
            size = path.stat().st_size
            recorded = (known or {}).get(name)
            digest = recorded.sha256 if recorded is not None and recorded.size == size else sha256_of(path)
        found[name] = ManifestFile(size, digest)
    return found


def manifest_digest(manifest: Manifest) -> str:
    """Return one SHA-256 (hex) of a manifest: that of the output of ``sha256sum`` for its files, sorted by name."""
    listing = "".join(f"{file.sha256}  {name}\n" for name, file in sorted(manifest.items()))
    return hashlib.sha256(listing.encode()).hexdigest()


def differences(approved: Manifest, found: Manifest) -> dict[str, list[str]]:
    """Return the names of the files that are ``missing``, ``changed`` or ``additional`` against what was approved."""
    names = {
        "missing": sorted(approved.keys() - found.keys()),
        "changed": sorted(name for name in approved.keys() & found.keys() if approved[name] != found[name]),
        "additional": sorted(found.keys() - approved.keys()),
    }
    return {kind: found_names for kind, found_names in names.items() if found_names}
