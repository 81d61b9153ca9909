"""A database that the installed Prefect cannot open is reported and not changed (issue 13, number 6)."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from flows.engine.server.database import check_database, diagnosed, is_known
from tasks.shared.errors import NetworkError, StorageError
from tests.conftest import Commands


def newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("UPDATE alembic_version SET version_num = 'fedcba987654'")


def no_database(path: Path) -> None:
    path.write_bytes(b"<!DOCTYPE html>" * 100)


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def scribbled(path: Path) -> None:
    """The pages after the first, overwritten."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\x5a" * (path.stat().st_size - 4096))


def one_page(path: Path) -> None:
    """The root page of one table, which a start and ``job list`` come to late."""
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'flow_run_state'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\x5a" * size)


@pytest.mark.parametrize(
    ("spoil", "reference"),
    [
        (newer, "prefect-database-newer"),
        (no_database, "prefect-database-damaged"),
        (cut, "prefect-database-damaged"),
        (scribbled, "prefect-database-damaged"),
        (one_page, "prefect-database-damaged"),
    ],
)
def test_it_is_said_by_commands_and_the_file_is_left_as_it_is(
    sluice_alone: Commands, project: Path, spoil: object, reference: str
) -> None:
    database = project / "jobs/.prefect/prefect.db"
    spoil(database)  # type: ignore[operator]
    before = hashlib.sha256(database.read_bytes()).hexdigest()
    commands = [("job", "list", "config.yaml"), ("pipeline", "start", "config.yaml")]
    commands += [("server", "start", "config.yaml", "--port", "0")]
    for command in commands:
        ran = sluice_alone(*command)
        assert ran.code == 1, ran.out + ran.err
        assert f"error[{reference}]: " in ran.err
        assert str(database) in ran.err
        assert "hint: " in ran.err
        assert "internal" not in ran.err
    assert hashlib.sha256(database.read_bytes()).hexdigest() == before


def test_a_large_damaged_database_is_reported_when_the_server_fails(
    tmp_path: Path, migrated_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(migrated_database, tmp_path / "prefect.db")
    one_page(tmp_path / "prefect.db")
    monkeypatch.setattr("flows.engine.server.database.SMALL", 0)
    check_database(tmp_path)
    with pytest.raises(StorageError) as caught, diagnosed(tmp_path):
        raise NetworkError("prefect-refused", "the Prefect API answered 503", status=503)
    assert caught.value.reference == "prefect-database-damaged"


def test_a_server_that_fails_over_a_good_database_is_what_it_is(tmp_path: Path, migrated_database: Path) -> None:
    shutil.copy(migrated_database, tmp_path / "prefect.db")
    for home in (tmp_path, None):
        with pytest.raises(NetworkError), diagnosed(home):
            raise NetworkError("prefect-refused", "the Prefect API answered 503", status=503)


@pytest.mark.parametrize("name", ["PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_CONNECTION_URL"])
def test_where_another_database_is_named_this_one_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    no_database(tmp_path / "prefect.db")
    monkeypatch.setenv(name, "postgresql+asyncpg://somewhere/prefect")
    check_database(tmp_path)


def test_every_version_that_prefect_has_scripts_for_is_known(migrated_database: Path) -> None:
    with closing(sqlite3.connect(migrated_database)) as connection:
        (version,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    assert is_known(version)
    assert is_known("bb2345678901")  # its script carries another name
    assert not is_known("fedcba987654")
    assert not is_known("")


def test_none_an_empty_one_and_a_good_one_are_fine(tmp_path: Path, migrated_database: Path) -> None:
    check_database(tmp_path)
    (tmp_path / "prefect.db").touch()
    check_database(tmp_path)
    (tmp_path / "prefect.db").write_bytes(migrated_database.read_bytes())
    check_database(tmp_path, thoroughly=True)


def test_a_bad_page_deep_inside_is_found_by_a_thorough_look(tmp_path: Path, migrated_database: Path) -> None:
    data = bytearray(migrated_database.read_bytes())
    for page in range(len(data) // 8192, len(data) // 4096 - 1):
        data[page * 4096 : page * 4096 + 4096] = b"\x5a" * 4096
    (tmp_path / "prefect.db").write_bytes(data)
    with pytest.raises(StorageError) as caught:
        check_database(tmp_path, thoroughly=True)
    assert caught.value.reference == "prefect-database-damaged"
