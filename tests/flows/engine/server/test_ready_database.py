"""A new jobs directory begins with a copy of a database that Prefect has migrated (docs/decisions/0047)."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from flows.engine.server import database
from flows.engine.server.database import BESIDE, cached_at, provide, ready
from flows.engine.server.proof import announced
from flows.engine.server.start import EmbeddedServer
from flows.engine.server.watch import is_alive
from tasks.shared.errors import StorageError
from tests.conftest import wait_until

Spoil = Callable[[Path], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home/prefect.db"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the database in a cache directory of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = cached_at()
    assert place is not None
    return place


@pytest.fixture
def cached(place: Path, migrated_database: Path) -> Path:
    """Return the database in a cache directory of its own."""
    place.parent.mkdir(mode=0o700, parents=True)
    place.write_bytes(migrated_database.read_bytes())
    place.chmod(0o600)
    return place


def tables(path: Path) -> set[tuple[str, int]]:
    """Return the tables' names and the length of their SQL: the order of constraints differs between processes."""
    with closing(sqlite3.connect(path)) as connection:
        return set(connection.execute("SELECT name, length(sql) FROM sqlite_master WHERE sql IS NOT NULL"))


@pytest.mark.slow
def test_the_first_server_keeps_what_it_made_and_later_ones_copy_it(tmp_path: Path, path: Path, place: Path) -> None:
    """Also of two that begin at once, beside a damaged one that is kept."""
    place.parent.mkdir(mode=0o700, parents=True)
    place.write_bytes(b"x")
    with EmbeddedServer(tmp_path / "a") as first, EmbeddedServer(tmp_path / "b") as second:
        first.address()
        second.address()
        made = [tables(tmp_path / name / ".prefect/prefect.db") for name in "ab"]
    assert provide(path)
    assert made == [tables(path)] * 2
    assert place.parent.stat().st_mode & 0o777 == 0o700
    assert {one.suffix: one.stat().st_mode & 0o777 for one in place.parent.iterdir()} == {".db": 0o600, ".lock": 0o600}


@pytest.mark.slow
def test_without_a_cache_directory_and_after_a_kill_prefect_migrates_to_the_same(
    tmp_path: Path, migrated_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("this is no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "jobs/.prefect/prefect.db"
    with EmbeddedServer(tmp_path / "jobs"):
        wait_until(lambda: path.exists() and bool(tables(path)))
        server = announced(path.parent)
        assert server is not None
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(path.parent))
    assert tables(path) != tables(migrated_database), "it was killed in the middle"
    with EmbeddedServer(tmp_path / "jobs") as again:
        again.address()
        made = tables(path)
    assert made == tables(migrated_database)


def test_a_cache_directory_in_which_it_cannot_be_kept_keeps_nothing(migrated_database: Path, place: Path) -> None:
    """Full, or in use by another process that keeps one."""
    place.mkdir(mode=0o700, parents=True)
    database._store_in_cache(migrated_database.read_bytes())
    assert {one.suffix for one in place.parent.iterdir()} == {".db", ".lock"}
    place.rmdir()
    with place.with_suffix(".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        database._store_in_cache(migrated_database.read_bytes())
    assert ready() is None
    database._store_in_cache(migrated_database.read_bytes())
    assert ready() is not None


def test_it_is_put_there_whole_and_private(path: Path, cached: Path) -> None:
    umask = os.umask(0o022)
    try:
        assert provide(path)
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes() == cached.read_bytes()
    found = ready()
    assert found is not None
    assert database.check_database(path.parent, thoroughly=True) == [found.revision]


def with_row(cached: Path) -> None:
    with closing(sqlite3.connect(cached)) as connection, connection:
        connection.execute("INSERT INTO configuration (key, value) VALUES ('k', '{}')")


def two_revisions(cached: Path) -> None:
    with closing(sqlite3.connect(cached)) as connection, connection:
        connection.execute("INSERT INTO alembic_version VALUES ('other')")


NOT_BELIEVED: dict[str, Spoil] = {
    "empty": lambda cached: cached.write_bytes(b""),
    "no database": lambda cached: cached.write_bytes(b"x" * 5000),
    "cut off": lambda cached: os.truncate(cached, 100_000),
    "rows of somebody": with_row,
    "two revisions": two_revisions,
    "others may write beside it": lambda cached: cached.parent.chmod(0o777),
    "of another version of Prefect": lambda cached: cached.rename(cached.with_name("prefect-3.8.7.db")),
}


@pytest.mark.parametrize("spoil", NOT_BELIEVED.values(), ids=NOT_BELIEVED)
def test_a_file_in_the_cache_directory_that_is_not_what_it_must_be_is_not_used(
    path: Path, cached: Path, spoil: Spoil
) -> None:
    assert ready() is not None
    spoil(cached)
    assert ready() is None
    assert not provide(path)
    assert list(path.parent.iterdir()) == []
    assert not database.prepare_database(path.parent)


def test_a_cache_directory_of_another_user_is_not_used(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert ready() is None


@pytest.mark.parametrize("suffix", BESIDE)
def test_where_a_database_is_or_was_nothing_is_done(path: Path, cached: Path, suffix: str) -> None:
    """SQLite takes a log that was left behind for that of the file beside it."""
    there = path.with_name(path.name + suffix)
    there.write_bytes(b"what was there")
    assert not provide(path)
    assert list(path.parent.iterdir()) == [there]
    assert there.read_bytes() == b"what was there"


def test_what_cannot_be_written_leaves_nothing_half(path: Path, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    path: Path, cached: Path, version: str | None, migrated: bool
) -> None:
    assert database.prepare_database(path.parent)
    if version is not None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", (version,))
    assert database.prepare_database(path.parent) == migrated


@pytest.mark.parametrize("name", database.ELSEWHERE)
def test_of_a_database_elsewhere_nothing_is_known(
    path: Path, cached: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "postgresql+asyncpg")
    assert not database.prepare_database(path.parent)
    assert list(path.parent.iterdir()) == []
    monkeypatch.delenv(name)
    (path.parent / "profiles.toml").write_text("active = 'x'\n")
    assert not database.prepare_database(path.parent)
