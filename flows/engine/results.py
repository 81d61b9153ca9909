"""``.results/``: the reports of finished steps, read only as JSON (``4-product.md`` §4).

Prefect reads a stored result with the serializer that the *file* names, and a pickle runs code. So a file is read here,
and Prefect gets a record of ours around the result. Anything else than the exact output of a step is a damaged result
and counts as missing: the step is run again and replaces the file.
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from tasks.shared.errors import storage_errors
from tasks.shared.files.out_file import PartFile
from tasks.shared.report import StepReport

_JSON: Final = "prefect.serializers.prefect_json_object_"
_SERIALIZER: Final = {
    "type": "json", "jsonlib": "json", "object_encoder": f"{_JSON}encoder", "object_decoder": f"{_JSON}decoder",
    "dumps_kwargs": {}, "loads_kwargs": {},
}  # fmt: skip
"""Data of ``result_serializer="json"`` about itself. Another library or decoder named here would be imported."""

_LIVE: Final = ("__class__", "__exc_type__")
"""Keys from which that decoder makes objects of any class. A result of ours has none."""


class DamagedResultError(ValueError):
    """The file is not the result of a step. The message gives the reason and quotes nothing from the file."""


class _Metadata(msgspec.Struct):
    serializer: dict[str, Any]
    storage_key: str
    storage_block_id: None = None
    expiration: None = None


class _Record(msgspec.Struct):
    metadata: _Metadata
    result: str


def read_result(path: Path) -> bytes | None:
    """Return the record of a finished step, as Prefect may read it; ``None`` without a file.

    Raises:
        DamagedResultError: it is not a regular file of this user's directory, or not a step's result.
    """
    found = _checked(path)
    if found is None:
        return None
    metadata = {"serializer": _SERIALIZER | {"object_decoder": None}, "storage_key": str(path)}
    return msgspec.json.encode({"metadata": metadata, "result": found[0]})


def read_report(path: Path) -> StepReport | None:
    """Return the report of a finished step; ``None`` without a file. Raises the errors of ``read_result``."""
    found = _checked(path)
    return found[1] if found is not None else None


def _checked(path: Path) -> tuple[str, StepReport] | None:
    """Return the text of a result and the report in it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise DamagedResultError(f"it cannot be read ({problem.strerror})") from None
    try:
        record = msgspec.json.decode(content, type=_Record)
        report = StepReport.model_validate_json(record.result, strict=True)
        result = msgspec.json.decode(record.result)
    except (msgspec.MsgspecError, ValidationError, UnicodeDecodeError, RecursionError):
        raise DamagedResultError("it is not the JSON of a step's result") from None
    if record.metadata.serializer != _SERIALIZER or _lives(result):
        raise DamagedResultError("it names a format other than JSON")
    if PurePath(record.metadata.storage_key).parts[-3:] != path.parts[-3:]:
        raise DamagedResultError("it is the result of another step or job")
    if report.output is not None and not _inside(report.output):
        raise DamagedResultError("it names an output outside of the job")
    return record.result, report


def write_result(path: Path, content: bytes) -> None:
    """Write a record completely or not at all (0600), replacing any file of that name.

    Raises:
        StorageError: it cannot be written.
    """
    with storage_errors(path), PartFile(path) as part:
        part.write(content)
        part.commit()


def _lives(value: Any) -> bool:
    if isinstance(value, dict):
        return any(key in value for key in _LIVE) or any(map(_lives, value.values()))
    return isinstance(value, list) and any(map(_lives, value))


def _inside(output: str) -> bool:
    path = PurePath(output)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts
