"""Read the query and the patients that a person gives (docs/services.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tasks.shared.errors import InputError
from tasks.shared.fhir.crtdl import parse_document, read_content
from tasks.shared.fhir.resource import ID
from tasks.shared.files.named_file import JsonFile

PATIENTS: Final = "patients.txt"
"""The job's own copy of the patients it was started with (0600)."""


def read_query(path: Path) -> bytes:
    """Return the content of a file with a CRTDL or a bare cohort definition (CCDL); the server checks its criteria.

    Raises ``InputError``: ``crtdl-unreadable``, ``crtdl-not-json``, ``crtdl-keys``.
    """
    content = read_content(path)
    document = parse_document(content, path)
    if not isinstance(document, dict) or not {"cohortDefinition", "inclusionCriteria"} & document.keys():
        raise InputError(
            "crtdl-keys", "neither a CRTDL (cohortDefinition) nor a CCDL (inclusionCriteria)", context=str(path),
            hint="give the query itself, not a FHIR resource that wraps it",
        )  # fmt: skip
    return content


def own_patients(job_dir: Path | None, given: Path) -> Path:
    """Return the job's own copy of the file of patients, if it has one, else the file that was given."""
    return job_dir / PATIENTS if job_dir is not None and (job_dir / PATIENTS).is_file() else given


def read_patients(path: Path) -> tuple[str, ...]:
    """Return the ids in a file, one per line, without repetition; ``Patient/`` and blank lines are ignored.

    Raises ``InputError``: ``patients-unreadable``, ``patients-invalid`` (names the lines, never an id),
    ``patients-empty``.
    """
    try:
        text = JsonFile("patients", "the file of patient ids").read(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        message = "the file of patient ids is not UTF-8"
        raise InputError("patients-unreadable", message, context=str(path), hint="save it as UTF-8") from None
    entries = [line.strip().removeprefix("Patient/") for line in text.split("\n")]
    wrong = [number for number, entry in enumerate(entries, start=1) if entry and ID.fullmatch(entry) is None]
    ids = dict.fromkeys(filter(None, entries))
    if wrong:
        shown = ", ".join(map(str, wrong[:10])) + (", …" if len(wrong) > 10 else "")
        hint = "one id a line: letters, digits, - and ., at most 64; ids of resources, not medical record numbers"
        what = f"{len(wrong)} lines are not FHIR ids: {shown}"
        raise InputError("patients-invalid", what, context=f"{path}:{wrong[0]}", hint=hint)
    if not ids:
        raise InputError("patients-empty", "the file of patient ids holds no id", context=str(path))
    return tuple(ids)
