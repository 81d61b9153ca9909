"""Check that the rows of an answer belong to its resources (document 3 §5, "What must agree").

What a view promises follows from what it does: without ``forEach`` and ``where`` a row for each resource, with
``forEachOrNull`` at least one, with the others any number. Compared are ids, the view's column ``id`` (its path is
``id``: the plain one, no ``Type/id``); a resource without one got one when it was routed. Rows of a view that has no
such column are only counted.

What is held are the ids of one batch, none of the answer's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Self

from tasks.flattening.rows import NoRowError, RowReader
from tasks.flattening.tables import CsvTable
from tasks.flattening.views import GroupView

LONGEST_ROW: Final = 64 << 20
"""Bytes. What has no line end up to there is no row."""


class Promise(Enum):
    """The number of rows that a view gives for a resource."""

    ONE = "one"
    AT_LEAST_ONE = "at least one"
    ANY = "any number"


@dataclass(frozen=True)
class RowRule:
    """The rule for the answers about one view; ``column`` is the index of the column with the ids."""

    promise: Promise
    column: int | None

    @classmethod
    def of(cls, view: GroupView) -> Self:
        """Return the rule of a view."""
        clauses = list(_clauses(view.definition))
        if view.definition.get("where") or any("forEach" in clause for clause in clauses):
            promise = Promise.ANY
        elif any("forEachOrNull" in clause for clause in clauses):
            promise = Promise.AT_LEAST_ONE
        else:
            promise = Promise.ONE
        paths = [] if _iterates(clauses[0]) else [column["path"] for column in clauses[0].get("column", ())]
        return cls(promise, paths.index("id") if "id" in paths else None)


def _iterates(clause: Mapping[str, Any]) -> bool:
    return "forEach" in clause or "forEachOrNull" in clause


def _clauses(clause: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for below in clause.get("select", ()):
        yield below
        yield from _clauses(below)


class RowsDifferError(Exception):
    """The rows are not those of the resources. The message is a sentence of counts."""


class RowAgreement:
    """Compares the rows of one answer with the resources of its request, which have these ``ids``."""

    def __init__(self, rule: RowRule, ids: Collection[str]) -> None:
        self._rule = rule
        self._sent = Counter(ids)
        self._found: Counter[str] = Counter()
        self._rows = 0
        self._foreign = 0

    def check_ids(self, ids: Sequence[str | None]) -> bool:
        """Count the ids of some rows; return whether all of them can still be right."""
        self._rows += len(ids)
        if self._rule.column is not None:
            known = [one for one in ids if one is not None and one in self._sent]
            self._foreign += len(ids) - len(known)
            self._found.update(known)
        return not self._foreign and (self._rule.promise is not Promise.ONE or self._rows <= self._sent.total())

    def end(self) -> int:
        """There are no more rows: of how many resources were they? Raises ``RowsDifferError``."""
        sent = self._sent.total()
        found = min(self._rows, sent) if self._rule.column is None else (self._found & self._sent).total()
        missing = 0 if self._rule.promise is Promise.ANY else sent - found
        more = self._rows - self._foreign - found if self._rule.promise is Promise.ONE else 0
        if not missing and not self._foreign and not more:
            return found
        counts = {"missing": missing, "of other resources": self._foreign, "too many": more}
        told = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        raise RowsDifferError(f"the rows do not agree with the {sent:,} resources that were sent: {told}")


class AnswerWriter:
    """Writes the rows of one answer to ``table`` while they arrive, in pieces of any size.

    By ``rule`` they must be those of the resources with these ``ids``. ``begin`` starts over, ``end`` takes the last
    row; then ``with_rows`` says how many resources had one. ``last`` is what was read last, or where rows ceased to be
    right, for private files. Raises
    ``NoRowError``, ``RowsDifferError`` and ``StorageError``.
    """

    def __init__(self, table: CsvTable, rule: RowRule, ids: Collection[str]) -> None:
        self._table = table
        self._rule = rule
        self._ids = ids
        self.begin()

    def begin(self) -> None:
        """Forget what was written of an earlier attempt."""
        self.drop()
        self.rows = RowReader(self._table.columns, self._rule.column)
        self.with_rows = 0
        self.last = b""
        self._right = True
        self._agreement = RowAgreement(self._rule, self._ids)
        self._rest = bytearray()

    def drop(self) -> None:
        """Cut off what was written of this answer."""
        self._table.drop()

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the answer."""
        end = piece.rfind(b"\n") + 1
        if end:
            block = bytes(self._rest) + piece[:end] if self._rest else piece[:end]
            self._rest = bytearray(piece[end:])
            self._read(block)
        else:
            self._rest += piece
        if len(self._rest) > LONGEST_ROW:
            raise NoRowError(self.rows.count + 1, bytes(self._rest[: 1 << 20]))

    def end(self) -> None:
        """Finish the answer, whose last row may lack a line end."""
        if self._rest:
            block, self._rest = bytes(self._rest), bytearray()
            self._read(block)
        self.with_rows = self._agreement.end()

    def _read(self, block: bytes) -> None:
        text = self.rows.read(block)
        if self._right:
            self.last = block
            self._right = self._agreement.check_ids(self.rows.ids)
            self._table.write(text)
        else:
            self._agreement.check_ids(self.rows.ids)  # only counted: whether the answer ends well decides what it is
