"""The exact counts of the measuring pass, used only by ``build`` and never shown.

The unit is the patient (document 5, R1): a Bundle with one Patient makes all that is in it that patient's, else the
target of ``subject``, ``patient`` or ``beneficiary`` counts, and a Patient is its own. What has none is ``nobody``'s.
A path is made of the names of FHIR's elements, without indices: ``Patient.name.family``; an extension stands with its
URL, ``Patient.extension(http://…).valueString``; a contained resource as ``Observation.contained.Patient.name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Values = Mapping[str, int]
"""Something by name, with the number of patients that have it."""


@dataclass(frozen=True)
class MeasuredFile:
    """A file as it is stored; bytes are those on the disk, ``content`` those inside of a compressed one."""

    name: str
    bytes: int
    content: int
    lines: int
    resources: int
    patients: int
    sha256: str


@dataclass(frozen=True)
class TypeCount:
    """Resources of one type; ``nobody`` are those that belong to no patient. ``asked`` is for ``build``."""

    resources: int
    patients: int
    nobody: int = 0


@dataclass(frozen=True)
class Path:
    """A leaf path. ``kind`` is what stands there when it identifies: see ``kinds.py``; empty when it does not.

    ``original`` is of
    how many patients a value was in ``import/`` with fewer than k patients and still stands here (7b). ``compared`` is
    false where values that are not counted so may be those of ``import/`` all the same.
    """

    patients: int
    kind: str = ""
    original: int = 0
    nobody: int = 0
    original_nobody: int = 0
    compared: bool = True


@dataclass(frozen=True)
class Dates:
    """A path with dates: patients by month, and by the precision of values (year, month, day, time).

    ``compared`` are those whose days could be compared with ``import/``, ``same`` those with one that is the same,
    ``raw`` those of whom it is although their dates are shifted.
    """

    patients: int
    months: Values = field(default_factory=dict)
    precision: Values = field(default_factory=dict)
    compared: int = 0
    same: int = 0
    raw: int = 0


@dataclass(frozen=True)
class Ids:
    """The form of the ids of resources: patients by ``hashed``, ``uuid``, ``sequential``, ``other``, and also those
    that are ``original``, so that a patient can be counted twice.

    ``referred`` are patients with a reference, a ``fullUrl`` or a ``request.url`` that ends in an original id; the last
    two only where the resource's own id is another one.
    """

    kinds: Values = field(default_factory=dict)
    referred: int = 0


@dataclass(frozen=True)
class Measured:
    """The counts of one pass over the files of one directory.

    ``elements`` are patients by path of what is no leaf, ``Observation.code``, and of choices,
    ``Observation.value[x]``: with ``paths`` they tell how complete an element is. ``undefined`` are elements and types
    that R4 does not define and that hold text or objects, by path.
    ``others`` says what fell out of a bound of the pass, by bound (``values``, ``paths``,
    ``dates``, ``classes``, ``date_shifts``); when it is empty nothing did.

    ``classes`` are patients by (birth year, sex, region prefix), each a class of section 8. ``identifier_systems`` are
    patients by the system of an identifier, ``extensions`` by its URL. ``date_shifts`` are patients by days between the
    dates in ``import/`` and here, where they can be told by their order. ``births`` are patients by path with their own
    birthday there, ``birth_events`` those who had it there in ``import/`` and whose dates did not move. ``above_89``
    are patients whose age at the newest date in their data is above 89. ``unread`` are files that could not be
    measured, with the reason in words. ``tables`` says that the files are tables: the paths are ``table.column`` then.
    """

    files: tuple[MeasuredFile, ...] = ()
    patients: int = 0
    types: Mapping[str, TypeCount] = field(default_factory=dict)
    paths: Mapping[str, Path] = field(default_factory=dict)
    elements: Values = field(default_factory=dict)
    undefined: Mapping[str, Path] = field(default_factory=dict)
    dates: Mapping[str, Dates] = field(default_factory=dict)
    date_shifts: Mapping[int, int] = field(default_factory=dict)
    births: Values = field(default_factory=dict)
    birth_events: Values = field(default_factory=dict)
    ids: Ids = Ids()
    classes: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    identifier_systems: Values = field(default_factory=dict)
    extensions: Values = field(default_factory=dict)
    above_89: int = 0
    tables: bool = False
    others: Values = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def shift(self) -> Literal["none", "one", "own"] | None:
        """Return whether dates were shifted: none, all by the same number of days, or each patient's separately.

        ``None`` where that cannot be told. A single patient whose shift is none by chance tells nothing of the others.
        """
        if len(self.date_shifts) > 1:
            return "own"
        if 2 * sum(self.date_shifts.values()) < max(self.patients, 1):
            return None
        return "none" if 0 in self.date_shifts else "one"
