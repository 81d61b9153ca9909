"""The Parquet files of a step, beside its tables: ``csv/<name>.parquet``, unfinished like them until the step is done.

Each is made from its finished CSV, and only then: making it again costs seconds, so of an interrupted one nothing is
kept. The ledger says of a finished one how large it is and which columns had to become text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tasks.flattening.csv_writer import PARTIAL, Table
from tasks.flattening.parquet import PARQUET, write_parquet
from tasks.flattening.views import View
from tasks.shared.errors import storage_errors
from tasks.shared.files.ledger import Account, Ledger
from tasks.shared.files.out_file import size_of

_VOID: Final = "void"


class ParquetFiles:
    """Those of ``tables``, which are the tables of ``views``; of none when they are not ``wanted``.

    ``terms`` are those of the tables; ``check`` raises when the work is to end. Raises ``StorageError``.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        views: Sequence[View],
        ledger: Ledger,
        terms: str,
        *,
        wanted: bool,
        check: Callable[[], None],
    ) -> None:
        self._views = views
        self._ledger = ledger
        self._terms = terms
        self._check = check
        self._tables = tables if wanted else ()
        self._paths = [table.path.with_suffix(PARQUET) for table in self._tables]
        self._accounts = [ledger.account(path.name, terms) for path in self._paths]

    @property
    def names(self) -> set[str]:
        """Names of the finished files."""
        return {path.name for path in self._paths}

    def forget(self, place: int) -> None:
        """The table is begun anew."""
        if not self._tables:
            return
        path = self._paths[place]
        if self._accounts[place].complete is not None:
            self._ledger.account(path.name, _VOID)
            self._accounts[place] = self._ledger.account(path.name, self._terms)
        for one in (path, _partial(path)):
            with storage_errors(one):
                one.unlink(missing_ok=True)

    def make(self, rows: Sequence[int]) -> None:
        """Make what is missing; every table is complete, and has so many rows."""
        for place, (table, path) in enumerate(zip(self._tables, self._paths, strict=True)):
            if self._is_there(place):
                continue
            source = table.path if size_of(table.path) >= 0 else table.partial
            size, as_text = write_parquet(
                source, _partial(path), self._views[place].columns, rows=rows[place], check=self._check
            )
            self._ledger.complete(path.name, {"bytes": size, "as_text": list(as_text)})

    def made(self) -> list[tuple[Path, Path]]:
        """What was made and has not its name yet, with the name it is to have."""
        return [(_partial(path), path) for path in self._paths if size_of(_partial(path)) >= 0]

    def size(self, place: int) -> int | None:
        """Bytes of a finished file; ``None`` when there are none."""
        return int(_facts(self._accounts[place])["bytes"]) if self._tables else None

    def as_text(self, place: int) -> list[str]:
        """The columns of which some value is not of the type of the view."""
        return list(_facts(self._accounts[place])["as_text"]) if self._tables else []

    def _is_there(self, place: int) -> bool:
        facts, path = self._accounts[place].complete, self._paths[place]
        return facts is not None and facts["bytes"] in (size_of(_partial(path)), size_of(path))


def _partial(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


def _facts(account: Account) -> dict[str, Any]:
    return account.complete or {"bytes": 0, "as_text": []}
