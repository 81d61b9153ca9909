"""HAPI's JPA server, started once, and the tests' queries of its content.

python -m tests.real.hapi_server    runs one with an empty database until Ctrl-C, and prints its URL
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.real.programs import HOST, directory, program, running, scratch

FHIR = "application/fhir+json"
PAGE = 50
"""Most resources that HAPI gives at once."""
HOW = "python tests/real/get.py hapi"


@dataclass(frozen=True)
class Hapi:
    """A running server; ``url`` without ``/fhir``, as in ``services.send.url``."""

    url: str
    http: httpx.Client

    def get(self, path: str, accept: str = FHIR) -> httpx.Response:
        """Send a GET below ``/fhir/`` that HAPI does not answer from its cache of searches."""
        return self.http.get(f"{self.url}/fhir/{path}", headers={"Accept": accept, "Cache-Control": "no-cache"})

    def put(self, resource: dict[str, Any]) -> None:
        """Store a resource that is not there yet."""
        answer = self.http.put(f"{self.url}/fhir/{resource['resourceType']}/{resource['id']}", json=resource)
        assert answer.status_code == 201

    def read(self, path: str) -> dict[str, Any]:
        """Return a resource, with its decimals as they are spelled."""
        answer = self.get(path).raise_for_status()
        found: dict[str, Any] = json.loads(answer.text, parse_float=str)
        return found

    def count(self, search: str) -> int:
        """Count the resources that a search finds."""
        total: int = self.read(search + ("&" if "?" in search else "?") + "_summary=count")["total"]
        return total

    def version(self, path: str) -> str:
        """Version of a resource on the server: it grows with every change."""
        found: str = self.read(path)["meta"]["versionId"]
        return found

    def versions(self, keys: Iterable[str]) -> dict[str, str]:
        """Versions of many resources by ``Type/id``; those that are not there are missing."""
        found: dict[str, str] = {}
        by_kind: dict[str, list[str]] = {}
        for key in keys:
            kind, _, identity = key.partition("/")
            by_kind.setdefault(kind, []).append(identity)
        for kind, identities in by_kind.items():
            for start in range(0, len(identities), PAGE):
                some = identities[start : start + PAGE]
                page = self.read(f"{kind}?_id={','.join(some)}&_count={PAGE}")
                resources = [entry["resource"] for entry in page.get("entry", ())]
                found |= {f"{kind}/{one['id']}": one["meta"]["versionId"] for one in resources}
        return found


@contextmanager
def hapi_running() -> Iterator[str]:
    """HAPI with an empty database in memory, and its URL; it needs half a minute to start."""
    java = program("java", "SLUICE_REAL_JAVA", "install a JDK, 17 or newer")
    home = directory("SLUICE_REAL_HAPI", "lib", HOW)
    source = Path(__file__).with_name("hapi") / "Hapi.java"
    command = (java, "-Xmx1g", "-XX:TieredStopAtLevel=1", "-cp", f"{home}/lib/*", source)
    with scratch() as place, running("HAPI", command, place / "log", ends_with_input=True) as server:
        server.wait(lambda: server.line("listening ") is not None, 280)
        yield f"http://{HOST}:{server.line('listening ')}"


if __name__ == "__main__":
    with hapi_running() as address, suppress(KeyboardInterrupt):
        print(address, flush=True)
        threading.Event().wait()
