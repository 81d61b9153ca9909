"""The ready-made database of a new jobs directory is what the pinned Prefect would make (issue 19, number 1)."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flows.engine import ready_database, server_database
from flows.engine.ready_database import BESIDE, DUMP, ReadyDatabase, dump, provide, ready
from flows.engine.server import EmbeddedServer
from tasks.shared.errors import StorageError
from tests.conftest import ROOT
from tests.docs.pages import example

AGAIN = "a new pin of Prefect? python -m flows.engine.ready_database > flows/engine/prefect.sql"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prefect.db"


@pytest.fixture
def another_prefect(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The installed Prefect is not the one of the dump."""
    ready.cache_clear()
    monkeypatch.setattr(ready_database, "version", lambda _: "3.8.9")
    yield
    ready.cache_clear()


def test_it_is_that_of_the_pinned_and_installed_prefect() -> None:
    pinned = re.search(r"^prefect==([^\s;]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    found = ready()
    assert found is not None, AGAIN
    assert pinned is not None
    assert found.prefect == pinned[1], AGAIN


@pytest.mark.slow
def test_made_afresh_it_is_the_same() -> None:
    text = example("docs/development.md", ".venv/bin/python -m flows.engine.ready_database").text
    python, *words, arrow, target = text.split()
    assert (python, arrow, ROOT / target) == (".venv/bin/python", ">", DUMP)
    made = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert made.stdout == DUMP.read_text(), AGAIN


@pytest.mark.e2e
def test_without_it_prefect_migrates_to_the_same(tmp_path: Path, another_prefect: None) -> None:
    with EmbeddedServer(tmp_path / "jobs") as server:
        server.address()
        assert dump(tmp_path / "jobs/.prefect/prefect.db", "3.8.8") == DUMP.read_text(), AGAIN


def test_it_is_put_there_whole_and_private(path: Path) -> None:
    umask = os.umask(0o022)
    try:
        assert provide(path)
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    found = ready()
    assert found is not None
    assert dump(path, found.prefect) == found.sql
    assert server_database.check_database(path.parent, thoroughly=True) == [found.revision]


def test_it_knows_nothing_of_the_machine_that_made_it() -> None:
    text = DUMP.read_text()
    assert re.findall(r"^(?!CREATE TABLE|CREATE (?:UNIQUE )?INDEX)[A-Z]{5}.*", text, re.MULTILINE) == [
        "BEGIN;", f"INSERT INTO alembic_version VALUES ('{re.findall('version ([0-9a-f]+)', text)[0]}');", "COMMIT;",
    ]  # fmt: skip
    assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-|[0-9]{4}-[0-9]{2}-[0-9]{2}|/(home|root|tmp|work)", text)


def test_a_database_with_rows_is_not_dumped(path: Path) -> None:
    provide(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO configuration (key, value) VALUES ('k', '{}')")
    with pytest.raises(ValueError, match="configuration"):
        dump(path, "3.8.8")


@pytest.mark.parametrize("suffix", BESIDE)
def test_where_a_database_is_or_was_nothing_is_done(path: Path, suffix: str) -> None:
    """SQLite takes a log that was left behind for that of the file beside it."""
    there = path.with_name(path.name + suffix)
    there.write_bytes(b"what was there")
    assert not provide(path)
    assert list(path.parent.iterdir()) == [there]
    assert there.read_bytes() == b"what was there"


def test_for_another_version_of_prefect_it_is_none(path: Path, another_prefect: None) -> None:
    assert ready() is None
    assert not provide(path)
    assert list(path.parent.iterdir()) == []
    assert not server_database.prepare_database(path.parent)


def test_tables_that_this_sqlite_does_not_know_are_left_to_prefect(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_database, "ready", lambda: ReadyDatabase("3.8.8", "a", "CREATE NEW THING (a)"))
    assert not provide(path)
    assert list(path.parent.iterdir()) == []


def test_what_cannot_be_written_leaves_nothing_half(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError):
        provide(path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "migrated"), [(None, True), ("2095de406cbe", False)], ids=["ready-made", "of an older Prefect"]
)
def test_migrations_are_spared_where_the_database_is_as_prefect_wants_it(
    path: Path, version: str | None, migrated: bool
) -> None:
    assert server_database.prepare_database(path.parent)
    if version is not None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", (version,))
    assert server_database.prepare_database(path.parent) == migrated


@pytest.mark.parametrize("name", server_database.ELSEWHERE)
def test_of_a_database_elsewhere_nothing_is_known(path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "postgresql+asyncpg")
    assert not server_database.prepare_database(path.parent)
    assert list(path.parent.iterdir()) == []
    monkeypatch.delenv(name)
    (path.parent / "profiles.toml").write_text("active = 'x'\n")
    assert not server_database.prepare_database(path.parent)
