"""Output counts of a step equal the input counts of the next: files, lines, resources and bytes.

Bytes are those of files as they are stored. The input has every form that a file can have: compressed and plain, with a
byte order mark, blank lines and Windows' line ends, and without a line feed at its end.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tasks.local_import import importer
from tasks.shared.report import StepReport
from tests.peers import fhir, flattening, job, pseudonymization, services, validation
from tests.peers.data import as_line, resource
from tests.peers.fhir import observation
from tests.peers.s3 import S3Job, configuration, scripted
from tests.peers.transfer import Endpoint, TransferJob


def _data(directory: Path) -> int:
    """Files with a resource a line; how many there are."""
    people = [as_line(resource("Patient", f"p{n}", gender="female")) for n in range(9)]
    seen = [as_line(observation(f"o{n}", subject={"reference": f"Patient/p{n}"})) for n in range(7)]
    directory.mkdir()
    (directory / "core.ndjson").write_bytes(as_line(resource("Organization", "org")) + b"\n")
    (directory / "last-line-open.ndjson").write_bytes(b"\n".join(people[:3]))
    (directory / "windows.ndjson").write_bytes(codecs.BOM_UTF8 + b"\r\n\r\n".join(people[3:6]) + b"\r\n\n\n")
    (directory / "compressed.ndjson.zst").write_bytes(zstandard.compress(b"\n".join(people[6:]) + b"\n"))
    (directory / "open-and-compressed.ndjson.zst").write_bytes(zstandard.compress(b"\n\n".join(seen)))
    return 1 + len(people) + len(seen)


def _import(directory: Path, compression: bool) -> StepReport:
    data = directory.parent / "data"
    config = job.configuration({}, compression={"enabled": compression})
    return importer.run(job.context(directory, "local_import", config, input=str(data)))


def _pseudonymize(directory: Path, compression: bool) -> StepReport:
    with pseudonymization.serving(services.pseudonyms) as service:
        return pseudonymization.PseudonymizerJob(directory).run(service.url, compression=compression)


def _validate(directory: Path, source: str) -> StepReport:
    asking = validation.ValidationJob(directory)
    asking.input = directory / source
    with validation.serving() as service:
        return asking.validate(service.url, fail_on_error=False)


def _flatten(directory: Path, source: str) -> StepReport:
    asking = flattening.FlatteningJob(directory, flattening.VIEWS[::2])
    asking.input = directory / source
    with flattening.serving() as service:
        return asking.run(service.url)


def _load(directory: Path, source: str) -> StepReport:
    with fhir.serving() as server:
        return fhir.DirectLoadJob(directory, source).send(server.url)


def _transfer(directory: Path, source: str) -> StepReport:
    with Endpoint() as server:
        return TransferJob(directory, source).send(server.url)


def _upload(directory: Path, source: str) -> StepReport:
    with scripted() as store:
        return S3Job(directory, source=source).send(configuration(store.url))


READERS: dict[str, Callable[[Path, str], StepReport]] = {
    "validation": _validate, "flattening": _flatten, "direct load": _load, "transfer": _transfer, "S3": _upload,
}  # fmt: skip


def _comparable_figures(
    written: StepReport, read: StepReport, *, tables: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the output counts of one step and the input counts of the other, where both have them."""
    names = [("files", "files"), ("bytes_out", "bytes_in")]
    if not tables:
        names += [("lines_out", "lines_in"), ("resources_out", "resources_in")]
    pairs = [(getattr(written, out), getattr(read, into), into) for out, into in names]
    # How many tables the flattening wrote says nothing of what it read, and a store is told no lines.
    pairs = [pair for pair in pairs if pair[1] is not None and not (pair[2] == "files" and read.output == "csv")]
    return {name: wrote for wrote, _, name in pairs}, {name: found for _, found, name in pairs}


@pytest.mark.slow
@pytest.mark.parametrize("compression", [True, False], ids=["compressed", "plain"])
def test_what_one_step_wrote_is_what_the_next_one_read(tmp_path: Path, compression: bool) -> None:
    count = _data(tmp_path / "data")
    directory = tmp_path / "job"
    imported = _import(directory, compression)
    assert (imported.files, imported.resources_out) == (5, count)
    assert imported.bytes_in == sum(path.stat().st_size for path in (tmp_path / "data").iterdir())
    made = _pseudonymize(directory, compression)
    wrote, found = _comparable_figures(imported, made)
    assert wrote == found
    assert set(found) == {"files", "bytes_in", "lines_in", "resources_in"}
    for source, step in (("import", imported), ("pseudonymized", made)):
        for reader in READERS.values():
            read = reader(directory, source)
            wrote, found = _comparable_figures(step, read)
            assert wrote == found
            assert "bytes_in" in found
    tables = _flatten(directory, "pseudonymized")
    for reader in (_transfer, _upload):
        wrote, found = _comparable_figures(tables, reader(directory, "csv"), tables=True)
        assert wrote == found
        assert set(found) == {"files", "bytes_in"}
