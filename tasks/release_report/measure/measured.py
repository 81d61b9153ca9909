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

    ``one_each`` says that every patient has a value of its own there, and nobody shares one (7c). ``original`` is of
    how many patients a value was in ``import/`` with fewer than k patients and still stands here (7b). ``compared`` is
    false where values that are not counted so may be those of ``import/`` all the same.
    """

    patients: int
    kind: str = ""
    one_each: bool = False
    original: int = 0
    nobody: int = 0
    original_nobody: int = 0
    compared: bool = True


@dataclass(frozen=True)
class Codes:
    """A coded element: patients by ``system|code``, those without system, and those of whom the text alone is there.

    ``displays`` are one for each code, ``display_patients`` of how many patients it stands in this spelling.
    ``others`` are patients with codes that were not counted one by one, because there were too many different ones.
    """

    patients: int
    codes: Values = field(default_factory=dict)
    displays: Mapping[str, str] = field(default_factory=dict)
    display_patients: Values = field(default_factory=dict)
    systems: Values = field(default_factory=dict)
    text_only: int = 0
    others: int = 0


@dataclass(frozen=True)
class Numbers:
    """A number with a unit, by what it is of (the resource's first code): patients, units, and the quartiles.

    One value a patient, her median, goes into the quartiles; ``None`` where there are fewer than a handful.
    """

    patients: int
    units: Values = field(default_factory=dict)
    quartiles: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Dates:
    """A path with dates: patients by year, by quarter (``2020-Q1``), by month, and by the precision of values (year,
    month, day, time).

    ``future`` and ``before_birth`` are patients with such a date. ``compared`` are those whose days could be compared
    with ``import/``, ``same`` those with one that is the same, ``raw`` those of whom it is although their dates are
    shifted (7j).
    """

    patients: int
    years: Values = field(default_factory=dict)
    quarters: Values = field(default_factory=dict)
    months: Values = field(default_factory=dict)
    precision: Values = field(default_factory=dict)
    future: int = 0
    before_birth: int = 0
    compared: int = 0
    same: int = 0
    raw: int = 0


@dataclass(frozen=True)
class References:
    """References into these files, dangling ones, the patients with them, and those with absolute ones by host.

    A reference is counted as often as it stands there. ``other`` are searches. What is contained does not count.
    """

    inside: int = 0
    dangling: int = 0
    inside_patients: int = 0
    dangling_patients: int = 0
    hosts: Values = field(default_factory=dict)
    other: int = 0


@dataclass(frozen=True)
class Ids:
    """The form of the ids of resources: patients by ``hashed``, ``uuid``, ``sequential``, ``other``, and also those
    that are ``original``, so that a patient can be counted twice.

    ``referred`` are patients with a reference, a ``fullUrl`` or a ``request.url`` that ends in an original id; the last
    two only where the resource's own id is another one.
    """

    kinds: Values = field(default_factory=dict)
    duplicates: int = 0
    duplicate_patients: int = 0
    referred: int = 0


@dataclass(frozen=True)
class Measured:
    """The counts of one pass over the files of one directory.

    ``elements`` are patients by path of what is no leaf, ``Observation.code``, and of choices,
    ``Observation.value[x]``: with ``paths`` they tell how complete an element is. ``undefined`` are elements and types
    that R4 does not define and that hold text or objects, by path. ``attachments`` are patients by MIME type, by path.
    ``others`` says what fell out of a bound of the pass, by bound (``codes``, ``values``, ``paths``,
    ``numbers``, ``dates``, ``classes``, ``date_shifts``, ``one_each``); when it is empty nothing did.

    ``classes`` are patients by (birth year, sex, region prefix), each a class of section 8. ``identifier_systems`` are
    patients by the system of an identifier, ``extensions`` by its URL, ``profiles`` by ``meta.profile``, ``statuses``
    by ``Type.status|value``. ``date_shifts`` are patients by days between the dates in ``import/`` and here, where they
    can be told by their order. ``births`` are patients by path with their own birthday there, ``birth_events`` those
    who had it there in ``import/`` and whose dates did not move. ``changed`` are paths with other contents than in
    ``import/``, and the patients there; of the types ``uncompared`` there are not as many resources. ``above_89`` are
    patients whose age at the newest date in their data is above 89.
    ``multiplicity`` is, by type, the quartiles of resources a patient. ``unread`` are files that could not be measured,
    with the reason in words. ``tables`` says that the files are tables: the paths are ``table.column`` then.
    """

    files: tuple[MeasuredFile, ...] = ()
    patients: int = 0
    types: Mapping[str, TypeCount] = field(default_factory=dict)
    paths: Mapping[str, Path] = field(default_factory=dict)
    elements: Values = field(default_factory=dict)
    undefined: Mapping[str, Path] = field(default_factory=dict)
    codes: Mapping[str, Codes] = field(default_factory=dict)
    numbers: Mapping[str, Mapping[str, Numbers]] = field(default_factory=dict)
    dates: Mapping[str, Dates] = field(default_factory=dict)
    date_shifts: Mapping[int, int] = field(default_factory=dict)
    births: Values = field(default_factory=dict)
    birth_events: Values = field(default_factory=dict)
    changed: Values = field(default_factory=dict)
    uncompared: tuple[str, ...] = ()
    references: References = References()
    ids: Ids = Ids()
    classes: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    identifier_systems: Values = field(default_factory=dict)
    extensions: Values = field(default_factory=dict)
    profiles: Values = field(default_factory=dict)
    statuses: Values = field(default_factory=dict)
    attachments: Mapping[str, Values] = field(default_factory=dict)
    multiplicity: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
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
