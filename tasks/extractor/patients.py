"""``--patients FILE``: the patients of an extraction instead of the CRTDL's cohort (document 2, ``$extract-data``)."""

from __future__ import annotations

import re
from pathlib import Path

from tasks.shared.errors import InputError

_ID = re.compile(r"[A-Za-z0-9.-]{1,64}\Z", re.ASCII)
_PREFIX = "Patient/"


def read_patients(path: Path) -> tuple[str, ...]:
    """The ids in a file with one a line, each once, in order. ``Patient/`` in front and blank lines do not matter.

    Raises ``InputError``: ``patients-unreadable``, ``patients-invalid`` (names the lines, never an id),
    ``patients-empty``.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(
            "patients-unreadable",
            f"the file of patient ids cannot be read: {error.strerror or type(error).__name__}",
            context=str(path),
        ) from None
    except UnicodeDecodeError:
        message = "the file of patient ids is not UTF-8"
        raise InputError("patients-unreadable", message, context=str(path), hint="save it as UTF-8") from None
    ids: dict[str, None] = {}
    wrong: list[int] = []
    for number, line in enumerate(text.split("\n"), start=1):
        entry = line.strip().removeprefix(_PREFIX)
        if not entry:
            continue
        if _ID.match(entry):
            ids[entry] = None
        else:
            wrong.append(number)
    if wrong:
        shown = ", ".join(map(str, wrong[:10])) + (", …" if len(wrong) > 10 else "")
        raise InputError(
            "patients-invalid",
            f"{len(wrong)} lines are no FHIR ids: {shown}",
            context=f"{path}:{wrong[0]}",
            hint="one id a line: letters, digits, - and ., at most 64; ids of resources, not medical record numbers",
        )
    if not ids:
        raise InputError("patients-empty", "the file of patient ids holds none", context=str(path))
    return tuple(ids)
