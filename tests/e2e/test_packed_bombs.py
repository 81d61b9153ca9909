"""A small packed file that unpacks to gigabytes: named with file and line, in the memory of any other run.

Document 3 §1: one resource above ``limits.max_resource_mb`` (64) is an error before more than twice the limit is in
memory. The peak is that of the command's own process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from tests.bench.data import one_line
from tests.bench.echo import serving
from tests.e2e.test_large_data import LIMIT, MB, measured, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SIZE = 2_000 * MB
BOMBS: dict[str, tuple[bytes, bytes]] = {
    "a text": (b'{"resourceType":"Patient","id":"', b"0"),
    "a list": (b'{"resourceType":"Patient","name":[', b"{},"),
    "an entry": (b'{"resourceType":"Bundle","entry":[{"resource":{}},{"resource":{"a":"', b"0"),
    "a List": (b'{"resourceType":"List","entry":[', b'{"item":{}},'),
    "brackets": (b'{"resourceType":"Patient","name":', b"["),
    "blanks": (b"", b" "),
}
"""How the second line begins, and what then comes again and again."""


def pack(path: Path, begin: bytes, again: bytes, size: int = SIZE) -> None:
    piece = again * (MB // len(again))
    with path.open("wb") as file, zstandard.ZstdCompressor(level=1).stream_writer(file) as packed:
        packed.write(b'{"resourceType":"Patient","id":"first"}\n' + begin)
        for _ in range(size // len(piece)):
            packed.write(piece)


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_named_in_little_memory(sluice, tmp_path, name):
    (tmp_path / "data").mkdir()
    bomb = tmp_path / "data" / "bomb.ndjson.zst"
    pack(bomb, *BOMBS[name])
    assert bomb.stat().st_size < MB
    write_config(tmp_path)
    ran = measured(sluice, "pipeline", "start", "config.yaml", "--json")
    print(f"{name}: {bomb.stat().st_size / 1000:.0f} kB packed, peak {ran.peak:.0f} MB, {ran.seconds:.1f} s")
    assert ran.code == 1
    assert f"error[{'not-json' if name == 'brackets' else 'resource-too-large'}]" in ran.err
    assert "bomb.ndjson.zst:2" in ran.err
    assert ran.peak <= LIMIT


@pytest.fixture
def large(tmp_path: Path) -> Iterator[int]:
    """Yield a Bundle of 400 MB with small entries, on one line."""
    yield one_line(tmp_path / "data", 400)
    (tmp_path / "data" / "large.ndjson").unlink()


@pytest.fixture
def sink_port() -> Iterator[int]:
    """Yield a server that answers every transaction at once, in another process."""
    with serving() as port:
        yield port


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_a_bundle_of_400_mb_with_small_entries_is_imported_and_sent(sluice, tmp_path, sink_port, large):
    write_config(tmp_path, port=sink_port)
    ran = measured(sluice, "pipeline", "start", "config.yaml", "--json")
    assert ran.code == 0, ran.err
    imported, sent = json.loads(ran.out)["steps"]
    print(f"a Bundle of {large / MB:.0f} MB: peak {ran.peak:.0f} MB, {ran.seconds:.1f} s")
    assert imported["resources_out"] == sent["resources_out"] > 300_000
    assert ran.peak <= LIMIT
