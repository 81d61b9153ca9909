"""Memory does not grow with the data: at most 300 MB (``performance.md``), for many lines and for a single one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.peers.job import printed
from tests.peers.server import Reply
from tests.peers.validation import outcome, serving

MB = 1_000_000

CLIENT = """
import json, sys
from pathlib import Path
from typing import Any
import prefect
from tests.bench.memory import peak
from tests.peers.validation import ValidationJob

result = ValidationJob(Path(sys.argv[1])).validate(sys.argv[2], bundle_chunk_size_mb=10, max_concurrent_requests=4)
print(json.dumps([peak(), result.resources_in]))
"""


def entry(number: int) -> bytes:
    resource = {"resourceType": "Observation", "id": f"o{number}", "note": "y" * 900}
    return json.dumps({"fullUrl": f"urn:uuid:{number}", "resource": resource, "request": {"method": "PUT"}}).encode()


def write(path: Path, lines: int, entries: int) -> None:
    with path.open("wb") as file:
        for line in range(lines):
            file.write(b'{"resourceType":"Bundle","type":"transaction","entry":[')
            for number in range(entries):
                file.write((b"," if number else b"") + entry(line * entries + number))
            file.write(b"]}\n")


def peak(directory: Path) -> tuple[int, int]:
    """Most bytes of memory of a run in a process of its own, and how many resources it read."""
    finding = {"severity": "error", "code": "structure", "expression": ["Bundle.entry[0]"], "diagnostics": "z" * 500}
    with serving(lambda *_: Reply(200, outcome(*[finding] * 2000))) as server:
        server.seen = server.requests = server.accepted = _Nothing()
        memory, count = json.loads(printed(CLIENT, directory, server.url).splitlines()[-1])
    return memory, count


class _Nothing(list[Any]):
    """A list that drops the requests of the service."""

    def append(self, _: object, /) -> None:
        pass


@pytest.mark.campaign
@pytest.mark.parametrize(("lines", "entries"), [(2000, 100), (1, 400_000)], ids=["200 MB", "one line of 400 MB"])
def test_a_run_needs_at_most_300_mb_of_memory_prefect_included(tmp_path: Path, lines: int, entries: int) -> None:
    (tmp_path / "import").mkdir()
    write(tmp_path / "import" / "a.ndjson", lines, entries)
    assert (tmp_path / "import" / "a.ndjson").stat().st_size > lines * entries * 1000
    memory, count = peak(tmp_path)
    print(f"peak {memory / MB:.0f} MB")
    assert count == lines * entries
    assert memory <= 300 * MB
