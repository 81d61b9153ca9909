"""Identity as a map: an original id becomes one new id, in all answers of a step (document 3 §1).

A service keeps secret what it makes of an id, but it makes the same of it each time, two resources never get one id,
and a reference to a resource becomes a reference to its new id. What contradicts that was mixed up on the way: by the
service, or by something between it and us.

Allowed is what rules do: an id, or a reference to another type than Patient, may stay as it is (that is counted and
warned of, ``pairing.py``), and references to resources that are not in the data may become one (a substitute).
Numbers may change places: a service that counts its pseudonyms gives 1 for 2 and 2 for 1.

All ids are 64-bit hashes with a key of the job. They are in memory, up to some 50 MB, and in a file of this step, from
which a run after a crash learns what the data already hold. Each shard of a divided step has its own file, and they are
compared at the end. Whoever has originals and these files could pair both with pseudonyms, so they are removed when the
step is complete.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from tasks.shared.errors import StorageError, storage_errors
from tasks.shared.fhir.references import CONTAINED, SEARCH, URN, ReferenceTarget
from tasks.shared.files.out_file import OutFile, can_continue, size_of
from tasks.shared.files.private_file import open_private

REMEMBERED: Final = 200_000
"""Hashes, each with another one; twice as many are in memory at most."""
_INVERSE: Final = 0x9E3779B97F4A7C15
"""What tells the hash of a new id, as a key of the map, from that of an original one."""
_PERSONS: Final = frozenset({"Patient", f"Patient{SEARCH}", URN})
"""Kinds of references that must not become one, though the resource that they name is not in the data."""
_KEY: Final = 16
_ROW: Final = 16
_BLOCK: Final = _ROW << 12

Pair = tuple[ReferenceTarget, ReferenceTarget]
"""What a reference named when it was sent, and what it names in the answer."""


class IdentityVerdict(Enum):
    """The result of comparing an answer with the map. ``UNSURE``: references may be paired wrongly."""

    AGREES = "agrees"
    UNSURE = "unsure"
    TAKEN = "an id that another resource got before"
    TAKEN_HERE = "an id that another resource of the answer has"
    DIFFERS = "a reference or an id that differs from what an answer before made of it"
    DIFFERS_HERE = "a reference that does not agree with the ids in the answer"


class Loose(NamedTuple):
    """A new id of which is known only that it is that of one of these original ones (``Type/id``): that of a resource,
    or of what a reference names."""

    originals: frozenset[str]
    new: str
    is_reference: bool


class _WrongError(Exception):
    """A contradiction. ``here`` says that the answer contradicts itself."""

    def __init__(self, *, id: bool, here: bool) -> None:  # noqa: A002
        super().__init__()
        self.verdict = (
            (IdentityVerdict.TAKEN_HERE if here else IdentityVerdict.TAKEN)
            if id
            else (IdentityVerdict.DIFFERS_HERE if here else IdentityVerdict.DIFFERS)
        )


class IdentityMap:
    """The map from original ids to new ids and back. Thread-safe.

    ``path`` is the file that keeps it over a crash; without one nothing is kept. ``write`` before what follows from the
    answers so far is recorded. With ``anew`` only the key of the file is kept. ``parts`` are files of other maps, which
    are only read; a new file gets their key. ``most`` is for tests.
    """

    def __init__(
        self, path: Path | None = None, *, anew: bool = False, parts: Sequence[Path] = (),
        most: int = REMEMBERED,
    ) -> None:  # fmt: skip
        self._most = most
        self._now: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._loose: dict[int, frozenset[int]] = {}
        self._lock = threading.Lock()
        self._rows = array("Q")
        self._file = _opened(path, anew=anew) if path is not None else None
        self._parts = parts
        self._forgot = bool(parts) or (self._file is not None and self._file.size // _ROW > most)
        self._keyed = hashlib.blake2b(digest_size=8, key=self._read_secret())
        for rows in self._recorded():
            self._remember(dict(zip(rows[0::2], rows[1::2], strict=True)))

    def agree(
        self,
        originals: Sequence[str],
        news: Sequence[str],
        references: Iterable[Pair] = (),
        loose: Collection[Loose] = (),
        *,
        by_text: bool = False,
        enter: bool = True,
    ) -> IdentityVerdict:
        """Compare an answer with the map and ``enter`` it, if it agrees; else nothing of it is entered.

        ``originals`` and ``news`` are ids (``Type/id``) of the same resources. With ``by_text`` references were paired
        by where they stand in the text: then they are ``UNSURE`` rather than wrong, also where two that are not known
        yet may have changed places.
        """
        old = self._hashes(originals)
        new = old if news is originals else self._hashes(news)
        targets = [(self._hash(sent.key), self._hash(found.key), sent.kind, found.kind) for sent, found in references]
        choices = [(frozenset(map(self._hash, one.originals)), self._hash(one.new), one.is_reference) for one in loose]
        with self._lock:
            fresh: dict[int, int] = {}
            try:
                self._enter_ids(fresh, old, new, originals, news)
                try:
                    self._enter_references(fresh, targets, by_text)
                except _WrongError:
                    if by_text:
                        return IdentityVerdict.UNSURE
                    raise
                narrowed = self._narrow(fresh, choices)
            except _WrongError as wrong:
                return wrong.verdict
            if not enter:
                return IdentityVerdict.AGREES
            self._loose.update(narrowed)
            self._rows.extend(chain.from_iterable(fresh.items()))
            if self._parts:
                self._rows.extend(chain.from_iterable(_pairs(fresh, old, new, news)))
            self._remember(fresh)
        return IdentityVerdict.AGREES

    def write(self) -> None:
        """Write what was entered. Raises ``StorageError``."""
        with self._lock:
            rows, self._rows = self._rows, array("Q")
        if self._file is not None and rows:
            self._file.write(memoryview(rows).cast("B"))

    def contradicts(self) -> bool:
        """Return whether the files contradict each other or themselves. Ids that did not fit in memory, or that the
        parts have, are compared at the end, in as many rounds as memory requires."""
        self.write()
        if not self._forgot or self._file is None:
            return False
        rounds = 1 + (self._file.size + sum(map(size_of, self._parts))) // _ROW // (2 * self._most)
        for number in range(rounds):
            known: dict[int, int] = {}
            for rows in self._recorded():
                for key, value in zip(rows[0::2], rows[1::2], strict=True):
                    if key % rounds == number and known.setdefault(key, value) != value:
                        return True
        return False

    def note(self, group: str, members: Iterable[int]) -> list[int]:
        """Enter members of a group, which are no ids, and return their hashes."""
        hashes, value = self._hashes(f"{group} {member}" for member in members), self._hash(group)
        with self._lock:
            self._rows.extend(chain.from_iterable((one, value) for one in hashes))
        return hashes

    def noted(self, groups: Iterable[str]) -> Iterator[tuple[str, int]]:
        """Yield the groups and hashes that were noted, each as often as it was."""
        names = {self._hash(group): group for group in groups}
        for rows in self._recorded() if names else ():
            for key, value in zip(rows[0::2], rows[1::2], strict=True):
                if value in names:
                    yield names[value], key

    def close(self, *, keep: bool = True) -> None:
        """Close the file, and remove it unless another run needs it: ``keep``."""
        if self._file is None:
            return
        if keep:
            with suppress(StorageError):  # what led here is the error to report
                self.write()
        self._file.close()
        if not keep:
            self._file.path.unlink(missing_ok=True)

    def _enter_ids(
        self, fresh: dict[int, int], old: list[int], new: list[int], originals: Sequence[str], news: Sequence[str]
    ) -> None:
        fresh.update(zip([one ^ _INVERSE for one in new], old, strict=True))
        changed = old is not new
        if changed:
            fresh.update(zip(old, new, strict=True))
        back = [one ^ _INVERSE for one in old] if changed else ()
        if len(fresh) == len(old) * (1 + changed) and self._is_unknown(fresh) and self._is_unknown(back):
            if not changed:
                fresh.update((one, one) for one, name in zip(old, originals, strict=True) if name[:8] == "Patient/")
                return
            if fresh.keys().isdisjoint(back):
                return  # nearly always: all of them are new, and none is an original id
        fresh.clear()
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            known, here = self._find(fresh, after ^ _INVERSE)
            if known is None:
                fresh[after ^ _INVERSE] = before
            elif known != before:
                raise _WrongError(id=True, here=here)
            if before != after:
                # Whatever keeps ids gives each its own: it does not give two resources each other's.
                swapped, here = self._find(fresh, before ^ _INVERSE)
                if swapped == after and not _is_number(news[index]):
                    raise _WrongError(id=True, here=here)
            if before != after or originals[index].startswith("Patient/"):
                self._enter(fresh, before, after)

    def _enter_references(
        self, fresh: dict[int, int], targets: Iterable[tuple[int, int, str, str]], by_text: bool
    ) -> None:
        unknown: Counter[str] = Counter()
        for before, after, kind, becomes in targets:
            if becomes == CONTAINED:
                continue  # local to its resource
            if kind != becomes and (kind == CONTAINED or (_is_type(kind) and _is_type(becomes))):
                raise _WrongError(id=False, here=True)
            if before != after or kind == "Patient":
                unknown[kind] += before != after and self._find(fresh, before)[0] is None
                self._enter(fresh, before, after)
            if kind == becomes:
                known, here = self._find(fresh, after ^ _INVERSE)
                if known is None and kind in _PERSONS:
                    fresh[after ^ _INVERSE] = before
                elif known not in (None, before):
                    raise _WrongError(id=False, here=here)
        if by_text and any(count > 1 for count in unknown.values()):
            raise _WrongError(id=False, here=True)

    def _narrow(
        self, fresh: dict[int, int], choices: Iterable[tuple[frozenset[int], int, bool]]
    ) -> dict[int, frozenset[int]]:
        """Return the possible originals of each new id that has several candidates."""
        narrowed: dict[int, frozenset[int]] = {}
        for originals, new, is_reference in choices:
            known, here = self._find(fresh, new ^ _INVERSE)
            possible = originals & self._loose.get(new, originals)
            wrong = known not in (None, *originals) or (originals and not possible)
            if not wrong and new not in originals:
                became = {self._find(fresh, one)[0] for one in originals}
                wrong = bool(became) and None not in became and new not in became
            if wrong:
                raise _WrongError(id=not is_reference, here=here)
            if known is None and originals and not is_reference:
                narrowed[new] = possible
        return narrowed

    def _is_unknown(self, keys: Iterable[int]) -> bool:
        return self._now.keys().isdisjoint(keys) and self._before.keys().isdisjoint(keys)

    def _enter(self, fresh: dict[int, int], key: int, value: int) -> None:
        known, here = self._find(fresh, key)
        if known is None:
            fresh[key] = value
        elif known != value:
            raise _WrongError(id=False, here=here)

    def _find(self, fresh: dict[int, int], key: int) -> tuple[int | None, bool]:
        """Return the id that a key leads to, and whether it is from the current answer."""
        if (value := fresh.get(key)) is not None:
            return value, True
        if (value := self._now.get(key)) is None and (value := self._before.get(key)) is not None:
            self._now[key] = value  # in use
        return value, False

    def _remember(self, fresh: dict[int, int]) -> None:
        self._now.update(fresh)
        if len(self._now) > self._most:
            self._forgot |= bool(self._before)
            self._now, self._before = {}, self._now
        if len(self._loose) > self._most:
            self._loose.clear()

    def _hashes(self, names: Iterable[str]) -> list[int]:
        found: list[bytes] = []
        keyed = self._keyed.copy
        for name in names:
            digest = keyed()
            digest.update(name.encode("utf-8", "surrogatepass"))
            found.append(digest.digest())
        return array("Q", b"".join(found)).tolist()

    def _hash(self, name: str) -> int:
        return self._hashes((name,))[0]

    def _read_secret(self) -> bytes:
        if self._file is None:
            return secrets.token_bytes(_KEY)
        if not self._file.size:
            self._file.write(_key_of(self._parts[0]) if self._parts else secrets.token_bytes(_KEY))
        return _key_of(self._file.path)

    def _recorded(self) -> Iterator[array[int]]:
        """Yield blocks of rows of the files, each a key and the id it leads to."""
        for path in (self._file.path, *self._parts) if self._file is not None else ():
            with storage_errors(path), open_private(path) as file:
                file.seek(_KEY)
                while len(rows := file.read(_BLOCK)) >= _ROW:
                    yield array("Q", rows[: len(rows) - len(rows) % _ROW])


def _pairs(fresh: Collection[int], old: list[int], new: list[int], news: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield a row for each id that was entered, which contradicts that of a resource of another part if the two have
    each other's ids."""
    for before, after, name in zip(old, new, news, strict=True):
        if before != after and after ^ _INVERSE in fresh and not _is_number(name):
            yield before ^ after, before


def _is_number(name: str) -> bool:
    return name.rpartition("/")[2].isdecimal()


def _is_type(kind: str) -> bool:
    return kind != URN and not kind.endswith(SEARCH)


def _key_of(path: Path) -> bytes:
    with storage_errors(path), open_private(path) as file:
        return file.read(_KEY)


def _opened(path: Path, *, anew: bool) -> OutFile:
    """Open the file after its last whole row, or after its key, or create it."""
    size = max(0, size_of(path))
    keep = _KEY if anew else size - (size - _KEY) % _ROW
    return OutFile(path, keep if size >= _KEY and can_continue(path, keep) else 0)
