"""Inventories: names, sizes, SHA-256 of the stored bytes, one digest over them."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from tasks.shared.errors import Stopped
from tasks.shared.files.inventory import Inventory, differences, load, take_inventory
from tasks.shared.stop import Stop


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for name, content in (("import/b.ndjson", b"{}\n"), ("import/a.ndjson.zst", b"\x28"), ("csv/sub/ä.csv", b"")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path


def inventory_of(job: Path, *folders: str, **options: object) -> Inventory:
    return take_inventory(job, [job / name for name in folders or ("import", "csv")], stop=Stop(), **options)  # type: ignore[arg-type]


def test_it_holds_every_file_with_the_hash_of_its_stored_bytes_sorted_by_name(job: Path) -> None:
    found = [(entry.name, entry.size, entry.sha256) for entry in inventory_of(job).entries]
    assert found == [
        ("csv/sub/ä.csv", 0, hashlib.sha256(b"").hexdigest()),
        ("import/a.ndjson.zst", 1, hashlib.sha256(b"\x28").hexdigest()),
        ("import/b.ndjson", 3, hashlib.sha256(b"{}\n").hexdigest()),
    ]


def test_the_digest_is_that_of_its_canonical_lines(job: Path) -> None:
    lines = [
        json.dumps({"name": entry.name, "size": entry.size, "sha256": entry.sha256}, separators=(",", ":")) + "\n"
        for entry in inventory_of(job).entries
    ]
    assert inventory_of(job).digest == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_the_digest_depends_on_names_sizes_and_contents_alone(job: Path) -> None:
    before = inventory_of(job).digest
    os.utime(job / "import" / "b.ndjson", (1, 1))
    assert inventory_of(job, "csv", "import", "import").digest == before
    (job / "import" / ".NOTES.txt").touch()
    (job / "import" / "c.ndjson.part").touch()
    assert inventory_of(job).digest == before
    (job / "import" / "b.ndjson").write_bytes(b"[]\n")
    assert inventory_of(job).digest != before


def test_a_kept_one_is_private_and_comes_back_only_as_what_it_was(job: Path) -> None:
    inventory = inventory_of(job)
    path = job / ".done" / "1" / "inventory.ndjson"
    inventory.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load(path, inventory.digest) == inventory
    path.write_bytes(path.read_bytes().replace(b'"size":3', b'"size":4'))
    assert load(path, inventory.digest) is None
    for damaged in (b"\x80\x04", b'{"name":', b"[1]\n", b"null\n", b"[" * 100_000):
        path.write_bytes(damaged)
        assert load(path, inventory.digest) is None
    path.unlink()
    assert load(path, inventory.digest) is None


def test_a_file_whose_hash_is_known_is_not_read(job: Path) -> None:
    known, read = {"import/b.ndjson": "abc"}, list[int]()
    assert "abc" in [one.sha256 for one in inventory_of(job, known=known, read=read.append).entries]
    assert read == [1]


def test_names_that_are_no_utf_8_come_back(tmp_path: Path) -> None:
    (tmp_path / "import").mkdir()
    (tmp_path / "import" / os.fsdecode(b"\xff.ndjson")).write_bytes(b"{}")
    inventory = take_inventory(tmp_path, [tmp_path / "import"], stop=Stop())
    inventory.save(tmp_path / "kept")
    assert load(tmp_path / "kept", inventory.digest) == inventory


def test_differences_are_told_by_name(job: Path) -> None:
    before = inventory_of(job)
    (job / "import" / "b.ndjson").rename(job / "import" / "c.ndjson")
    (job / "import" / "a.ndjson.zst").unlink()
    (job / "csv" / "sub" / "ä.csv").write_bytes(b"x")
    (job / "csv" / "new\x1b.csv").write_bytes(b"y")
    assert differences(before, inventory_of(job)) == [
        "'added: csv/new\\x1b.csv'",
        "added: import/c.ndjson",
        "changed: csv/sub/ä.csv",
        "removed: import/a.ndjson.zst",
        "removed: import/b.ndjson",
    ]
    assert differences(before, before) == []


def test_a_stop_ends_it(job: Path) -> None:
    stop = Stop()
    stop.request("SIGTERM")
    with pytest.raises(Stopped):
        take_inventory(job, [job / "import"], stop=stop)
