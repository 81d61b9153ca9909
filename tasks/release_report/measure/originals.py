"""Original values: what fewer than k patients had in ``import/``, to be found where it still stands (section 7b).

Taken are texts and numbers of Patient, Person, Practitioner and RelatedPerson with their extensions, and everywhere
identifiers, narrative, attachments and free text (``kinds.py``). Never what is coded: codes, displays, units, the text
of a concept that has a code; and no number or date of a clinical resource. A value that stands somewhere as the display
of a code is coded, too. Numbers are compared as they are written.

The rule for short ones: a value needs three characters, and four when it has no letter; ``"Li"`` is not found. An
identifier that is shorter is looked for among identifiers only. A common one ("male", a postal code of a large town) is
out because k patients or more have it. Compared are whole values.

Identifiers are looked for in parts of values, too, and where everything else is coded: in ids, URLs, references, codes,
displays and texts, which are cut where no identifier goes on (``parts``). What has six characters with letters and
digits, or ten digits, is one wherever it stands. What is shorter, or a code of ``import/``, may be one by chance: in a
code or a text it must be the patient's own, elsewhere the patient's own or, from five characters with a digit on, that
of somebody who is no patient. Where the patients do not stand in the same order nobody's own can be told: then a code
or a text is none by such a value.

The displays of references to people and organizations count however many patients have them; and so do the identifiers
of practitioners: each such value has one owner.

A date of a person is one only with its day, and not the first of a year, which rules make of a year. Shifted dates are
soon those of somebody else: of 5,400 patients every seventh has then another one's birthday. So, where as many patients
leave as came in and stand in the same order, a date must be that of the same person; one that all patients have of
somebody stays an original, whatever the order.

A value is kept as a hash alone: Python's own of texts, SipHash with a random key of this process that is kept nowhere.
Where somebody set ``PYTHONHASHSEED``, BLAKE2 with a key of its own takes its place, slower. Hashes are 64 bits: of
2 million values and 50 million looked up, one in 200,000 reports has a match by chance. While ``import/`` is measured,
(hash, patient) go to disk (``Spill``); in memory is a table of at most 32 MB that says no for nearly all that was no
original. What it lets pass is spilled, too, and compared at the end.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Hashable, Iterator
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote

from tasks.release_report.measure.occurrences import Imported, birthday_texts
from tasks.release_report.measure.spill import Spill

LEAST: Final = 3
"""Characters of a value that can be an original."""
LEAST_DIGITS: Final = 4
"""The same without a letter."""
NOBODYS: Final = 1 << 31
"""Owners from here on are no patients: each resource that belongs to nobody is an owner of its own."""
IDENTIFIER: Final = "\0"
"""What is hashed behind an identifier that is looked for in parts of values."""
DISPLAY: Final = "\1"
"""What is hashed behind the display of a reference."""
OWN: Final = 1 << 29
"""Added to the place of a hit that counts only where the value was this owner's."""
OWN_OR_NOBODYS: Final = 1 << 30
"""Added to the place of one that counts also where the value was of somebody who is no patient."""
_PLACES: Final = OWN - 1
_PART: Final = re.compile(r"[^\W_][\w.*+~^-]{2,}[^\W_]")
_IS_ONE: Final = re.compile(r"(?:[A-Za-z]+/)?([\w.-]+)\Z", re.ASCII).match
"""An id, or a reference to one: nearly all values are so."""
_UUID: Final = 36
"""Characters of a UUID, which is one word."""
_MOST_PIECES: Final = 8
_LIKELY: Final = 5
_CERTAIN: Final = 6
_CERTAIN_DIGITS: Final = 10
_CODED: Final = 200_000
_LARGEST: Final = 1 << 25
_SMALLEST: Final = 1 << 16
_MANY: Final = ()
_EXACT: Final = 4_000_000
"""Hashes of values that are held, 8 bytes each."""


def keyed() -> Callable[[Hashable], int]:
    """Return a function that hashes texts to 64 signed bits with a random key."""
    if sys.flags.hash_randomization and os.environ.get("PYTHONHASHSEED", "random") in ("", "random"):
        return hash
    key = secrets.token_bytes(32)

    def slow(text: Hashable) -> int:
        found = hashlib.blake2b(str(text).encode(errors="surrogatepass"), key=key, digest_size=8).digest()
        return int.from_bytes(found, "little", signed=True)

    return slow


def may_be_one(text: str) -> bool:
    """Return whether a value is long enough to identify somebody."""
    size = len(text)
    if size < LEAST_DIGITS:
        return size == LEAST and text.isalpha()
    return True


def parts(text: str) -> Collection[str]:
    """Return the parts of a text that may be an identifier: its words and their parts, and the text after its last
    ``/``, ``|`` and ``=``."""
    if text.isalnum():
        return (text,)
    if (match := _IS_ONE(text)) is not None:
        return _pieces(match[1])
    if "%" in text:
        text = unquote(text)
    found = {piece for part in _PART.findall(text) for piece in _pieces(part)}
    for sign in "|/=":
        if sign in text:
            found.add(text[text.rfind(sign) + 1 :])
    return found


def _pieces(part: str) -> Collection[str]:
    """Return a word, and of several parts also each part, all but the first, all but the last, and all but both."""
    if part.isalnum() or (len(part) == _UUID and part[8] == part[13] == part[18] == part[23] == "-"):
        return (part,)
    several = part.replace(".", "-").replace("_", "-").split("-")
    if len(several) > _MOST_PIECES:
        return (part,)
    first, last = len(several[0]) + 1, -len(several[-1]) - 1
    found = [part, part[first:], part[:last], part[first:last]]
    found += [one for one in several if len(one) >= LEAST_DIGITS]
    return found


def is_certain(text: str) -> bool:
    """Return whether an identifier is very unlikely to be anything else."""
    if text.isdigit():
        return len(text) >= _CERTAIN_DIGITS
    return len(text) >= _CERTAIN and any(map(str.isdigit, text)) and any(map(str.isalpha, text))


def is_likely(text: str) -> bool:
    """Return whether an identifier is more than a word or a very short number."""
    return len(text) >= _LIKELY and any(map(str.isdigit, text))


class Originals:
    """The original values of ``import/``. Leaving its context gives back what it has on disk.

    ``note`` and ``identify`` take values in; ``close_import`` ends that; then ``table`` and ``mask`` say cheaply
    whether a hash may be one, and ``confirmed`` which of those that passed are. ``imported`` is what else is compared,
    and ``births`` are the birthdays as texts have them, whoever shares one.
    """

    def __init__(self, directory: Path, k: int) -> None:
        self.k = k
        self.hash = keyed()
        self.directory = directory
        self.values = Spill(directory)
        self.ids = Spill(directory, more=0)
        self.births = Spill(directory)
        self.imported: Imported | None = None
        self.coded: set[int] = set()
        self.lengths: set[int] = set()
        """Lengths of identifiers: what has another one is none."""
        self.table = bytearray()
        self.mask = 0
        self._kept = Spill(directory)
        self._exact: list[array[int]] | None = []
        """The hashes of the values, sorted, by parts; ``None`` where they are too many."""

    def is_one(self, number: int) -> bool:
        """Return whether a hash that the table lets pass is that of a value, as far as all of them are held."""
        if not self._exact:
            return self._exact is None
        part = self._exact[number % len(self._exact)]
        place = bisect_left(part, number)
        return place < len(part) and part[place] == number

    def codes(self, text: str) -> bool:
        """Return whether a text is a code or its display in ``import/``."""
        return self.hash(text) in self.coded

    def is_coded(self, text: str) -> None:
        """Remember a display, of 200,000 different ones at most."""
        if len(self.coded) < _CODED:
            self.coded.add(self.hash(text))

    def forget(self) -> None:
        """Begin again: the data are read once more."""
        self.values.close()
        self.ids.close()
        self.values, self.ids = Spill(self.directory), Spill(self.directory, more=0)

    def close_import(self, imported: Imported) -> None:
        """Find the values that fewer than k owners had, and make the table."""
        self.imported = imported
        for text, patient in birthday_texts(imported.births):
            self.births.hashes.append(self.hash(text))
            self.births.more[0].append(patient)
            self.births.settle()
        parts, held = self.values.parts(), 0
        for part in range(parts):
            few = self._few(part, parts)
            for value, owners in few:
                self._kept.hashes.extend([value] * len(owners))
                self._kept.more[0].extend(owners)
            self._kept.settle()
            held += len(few)
            if held > _EXACT:
                self._exact = None
            if self._exact is not None:
                self._exact.append(array("q", sorted(value for value, _ in few)))
        self.values.close()
        self.values = Spill(self.directory)
        found = (self._kept, self.ids, self.births)
        wanted = 16 * sum(map(len, found))
        size = _SMALLEST
        while size < min(wanted, _LARGEST):
            size *= 2
        self.table, self.mask = bytearray(size), size - 1
        table, mask = self.table, self.mask
        for spill in found:
            for value in spill.numbers():
                table[value & mask] = 1
                table[(value >> 32) & mask] = 1

    def _few(self, part: int, parts: int) -> list[tuple[int, tuple[int, ...]]]:
        """Hashes of one part that fewer than k owners had, and these."""
        k = self.k
        owners: dict[int, tuple[int, ...]] = {}
        for value, owner in self.values.rows(part, parts):
            known = owners.get(value)
            if known is None:
                owners[value] = (owner,)
            elif known and owner not in known:
                owners[value] = (*known, owner) if len(known) + 1 < k else _MANY
        coded = self.coded
        return [(value, known) for value, known in owners.items() if known and value not in coded]

    def confirmed(
        self, hits: Spill, *, ids: bool = False, dates: Container[int] = ()
    ) -> Iterator[tuple[int, int, bool]]:
        """Yield (place, owner, hers) for each hit (hash, place, owner) whose hash is an original, perhaps repeatedly.

        ``hers`` says that it was the original of this very owner; it is looked at in the places ``dates`` and in those
        that are marked (``OWN``, ``OWN_OR_NOBODYS``) alone, and true elsewhere.
        """
        of = self.ids if ids else self._kept
        parts = max(hits.parts(), of.parts())
        for part in range(parts):
            known = set(of.numbers(part, parts))
            asked = {value for value, place, _ in hits.rows(part, parts) if place >= OWN or place in dates}
            theirs = {row for row in of.rows(part, parts) if row[0] in asked} if asked else set()
            nobodys = {value for value, owner in theirs if owner >= NOBODYS}
            for value, place, owner in hits.rows(part, parts):
                if value in known:
                    hers = (place < OWN and place not in dates) or (value, owner) in theirs
                    yield place & _PLACES, owner, hers or (place >= OWN_OR_NOBODYS and value in nobodys)

    def birthdays(self, hits: Spill, places: Container[int]) -> Iterator[tuple[int, int]]:
        """Yield the hits in ``places`` that are the birthday of their owner, as (place, owner)."""
        parts = max(hits.parts(), self.births.parts())
        for part in range(parts):
            theirs = set(self.births.rows(part, parts))
            for value, place, owner in hits.rows(part, parts):
                if place in places and (value, owner) in theirs:
                    yield place, owner

    def close(self) -> None:
        """Give the space back. Safe to call twice."""
        days = (self.imported.days,) if self.imported is not None else ()
        for spill in (self.values, self.ids, self.births, self._kept, *days):
            spill.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
