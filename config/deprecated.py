"""Keys of earlier versions: still accepted, with a warning, and translated to today's (document 1, "Versioning")."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from config.auth import BASIC, OAUTH2
from config.fields import Kind
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
    def kind(self) -> Kind:
        """How its value is read."""
        if self.unit is not None or self.replacement is None:
            return Kind.INTEGER
        return keys_by_name()[self.replacement].kind

    @property
    def flat_auth(self) -> bool:
        """Whether it is one of the auth keys that stood directly in the extractor block."""
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
        DeprecatedKey("services.pseudonymizer.processes", None, why="the step works in one process"),
    )
}
