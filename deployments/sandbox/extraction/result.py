"""Lines of result files: transaction Bundles with their Provenances (document 3 §2, "Extraction semantics")."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from deployments.sandbox.common.json_text import encode
from deployments.sandbox.extraction.tree import Node

_SYSTEMS = "https://www.medizininformatik-initiative.de/fhir/fdpg/NamingSystem/"
PROGRAM = "sandbox"


@dataclass(frozen=True)
class BundleOrigin:
    """Source of a Bundle, as given in its Provenances."""

    job: str
    started: datetime
    recorded: datetime

    def provenance(self, bundle: str, group: str, keys: Sequence[str]) -> Node:
        """Return the Provenance of one attribute group in one Bundle.

        Its id is derived from job, Bundle and group, so that Provenances of two Bundles never overwrite each other in
        a FHIR server.
        """
        return {
            "resourceType": "Provenance",
            "id": f"prov-{uuid.uuid5(uuid.UUID(self.job), f'{bundle}|{group}')}",
            "target": [{"reference": key} for key in keys],
            "recorded": _second(self.recorded),
            "occurredPeriod": {"start": _second(self.started)},
            "agent": [{"who": {"identifier": {"system": f"{_SYSTEMS}program", "value": PROGRAM}}}],
            "entity": [_source("attribute_group", group), _source("extraction_id", self.job)],
        }


def _source(system: str, value: str) -> Node:
    return {"role": "source", "what": {"identifier": {"system": _SYSTEMS + system, "value": value}}}


def _second(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_bundle(
    file: IO[bytes], identity: str, resources: Iterator[Node], groups: Mapping[str, Sequence[str]], origin: BundleOrigin
) -> None:
    """Write one Bundle as one line, entry by entry. ``groups`` names the resources of each group, ``Type/id``."""
    file.write(b'{"resourceType":"Bundle","id":' + encode(identity) + b',"type":"transaction","entry":[')
    separator = b""
    for node in resources:
        file.write(separator + _entry(node))
        separator = b","
    for group, keys in groups.items():
        file.write(separator + _entry(origin.provenance(identity, group, keys)))
    file.write(b"]}\n")


def _entry(node: Node) -> bytes:
    return encode({"resource": node, "request": {"method": "PUT", "url": f"{node['resourceType']}/{node['id']}"}})


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that gets its name when the block ends, complete and on disk, or not at all."""
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a small JSON file."""
    with whole_file(path) as file:
        file.write(encode(value) + b"\n")
