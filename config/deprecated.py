"""Older keys: still accepted, with a warning, and translated to today's (document 1, "Versioning")."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from config.auth import BASIC, OAUTH2
from config.fields import KeyKind
from config.keys import keys_by_name

EXTRACTOR = "services.extractor"


@dataclass(frozen=True)
class DeprecatedKey:
    """An older key. ``replacement`` is ``None`` when nothing replaces it, for the reason that ``why`` gives a person;
    ``unit`` is what an integer counted.
    """

    key: str
    replacement: str | None
    unit: timedelta | None = None
    why: str = ""

    @property
    def kind(self) -> KeyKind:
        """Return the kind by which the value is read."""
        if self.unit is not None or self.replacement is None:
            return KeyKind.INTEGER
        return keys_by_name()[self.replacement].kind

    @property
    def flat_auth(self) -> bool:
        """Return whether the key is an auth key that used to be directly in the extractor block."""
        return self.replacement is not None and self.unit is None


DEPRECATED: dict[str, DeprecatedKey] = {
    old.key: old
    for old in (
        *(DeprecatedKey(f"{EXTRACTOR}.{name}", f"{EXTRACTOR}.auth.{name}") for name in (*BASIC, *OAUTH2)),
        DeprecatedKey(
            f"{EXTRACTOR}.extraction_timeout_minutes", f"{EXTRACTOR}.extraction_timeout", timedelta(minutes=1)
        ),
        DeprecatedKey(f"{EXTRACTOR}.polling_interval_seconds", f"{EXTRACTOR}.polling_interval", timedelta(seconds=1)),
        DeprecatedKey(
            f"{EXTRACTOR}.max_polling_interval_seconds",
            f"{EXTRACTOR}.max_polling_interval",
            timedelta(seconds=1),
        ),
        DeprecatedKey(
            "pipeline.max_ndjson_line_size_mb",
            None,
            why="lines may have any length; limits.max_resource_mb limits one resource",
        ),
    )
}

RENAMED: dict[str, str] = {
    "crtdl_preprocessing": "services.crtdl_preprocessing",
    "services.torch": EXTRACTOR,
    "services.dimp": "services.pseudonymizer",
    "services.send.server_url": "services.send.url",
    "services.send.project_identifier": "services.send.transfer.project_identifier",
    "services.send.organization_identifier": "services.send.transfer.organization_identifier",
}
"""Blocks and keys of the peer tool's files, and their paths today (document 7, section 5)."""

REMOVED_BLOCKS = frozenset({"services.csv_conversion", "services.parquet_conversion"})
"""Blocks of services that the step ``flattening`` replaced. Their content is ignored."""

RENAMED_STEPS = {"torch": "extractor", "dimp": "pseudonymizer"}
"""Step names of the peer tool's files, and those of today."""

OLDER_PREFIX = "AETHER_"
"""The prefix of the peer tool's variables. A variable with today's prefix has precedence."""


def current_path(path: str) -> str:
    """Return the path of today for a dotted path in which blocks or keys may have an older name."""
    found = ""
    for name in path.split("."):
        below = f"{found}.{name}".lstrip(".")
        found = RENAMED.get(below, below)
    return found


def older_paths(key: str) -> list[str]:
    """Return the dotted paths by which older files name a key of today, without those in ``DEPRECATED``."""
    return [old + key.removeprefix(new) for old, new in RENAMED.items() if f"{key}.".startswith(f"{new}.")]
