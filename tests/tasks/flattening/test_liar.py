"""A flattening service that lies, in one way at a time (document 3 §5): what becomes of each lie.

Honest but for the second batch of one group; every lie ends the step with an error that names group and batch, or is
listed with the reason why it cannot be noticed. ``docs/lies.md`` is made from these tables
(``tests/docs/test_lies.py``).
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tasks.flattening.flattening import FlatteningBounds
from tasks.flattening.probe import service as declared_service
from tasks.flattening.views import GroupView
from tasks.shared.errors import SluiceError
from tests.peers.flattening import (
    CONDITIONS,
    OBSERVATIONS,
    PATIENTS,
    FakeFlattening,
    FlatteningJob,
    FlatteningRequest,
    bundle,
    of_patient,
    provenance,
    resource,
    rows_of,
    serving,
    view,
)
from tests.peers.job import configuration, probed
from tests.peers.lies import Lie
from tests.peers.server import Reply

ANSWER, ROW, DIFFER = "flattening-answer", "flattening-row", "flattening-rows-differ"

OR_NULL = view(
    "g-code", "Condition", {"id": "id"}, name="Codes", each="code.coding", below={"code": "code"},
    clause="forEachOrNull",
)  # fmt: skip
VIEWS = (PATIENTS, CONDITIONS, OBSERVATIONS, OR_NULL)
SMALL: dict[str, Any] = {"bounds": FlatteningBounds(mebibyte=1000), "batch_size_mb": 4, "attempts": 1}


@dataclass(frozen=True)
class HonestRows:
    """Input of a lie: the honest rows, those of the answer before, and some of another view."""

    rows: list[bytes]
    before: list[bytes]
    others: list[bytes]


def lines(change: Callable[[HonestRows], list[bytes]]) -> Callable[[HonestRows], bytes]:
    return lambda asked: b"".join(row + b"\n" for row in change(asked))


def first(change: Callable[[bytes], bytes]) -> Callable[[HonestRows], bytes]:
    """Change the first row."""
    return lines(lambda asked: [change(asked.rows[0]), *asked.rows[1:]])


def identified(spelled: Callable[[bytes], bytes]) -> Callable[[HonestRows], bytes]:
    """Spell the id of the first row, a text with its quotes, in another way."""
    return first(lambda row: _ID.sub(lambda found: b'"id":' + spelled(found[1]), row))


def objects(asked: HonestRows) -> list[Any]:
    return [json.loads(row) for row in asked.rows]


def with_ids_of_before(asked: HonestRows) -> list[bytes]:
    ids = [_ID.search(row) for row in asked.before]
    return [_ID.sub(found[0] if found else b"", row) for row, found in zip(asked.rows, ids, strict=True)]


_ID = re.compile(rb'"id":("[^"]+")')
honest = lines(lambda asked: asked.rows)

PLAIN: dict[str, Lie] = {
    # What it is
    "HTML": Lie(lambda _: "<html>welcome</html>", ROW),
    "HTML by its header": Lie(lambda _: "<html>welcome</html>", ANSWER, headers={"Content-Type": "text/html"}),
    "rows as XML by the header": Lie(honest, ANSWER, headers={"Content-Type": "application/fhir+xml"}),
    "rows as plain text by the header": Lie(honest, ANSWER, headers={"Content-Type": "text/plain"}),
    "rows without a Content-Type": Lie(
        honest, None, "the deployed service names none; what it says is read as rows", headers={"Content-Type": ""}
    ),
    "HTML without a Content-Type": Lie(lambda _: "<html>welcome</html>", ROW, headers={"Content-Type": ""}),
    "CSV": Lie(lambda _: "id,patient,value\na,b,c\n", ROW),
    "CSV by its header": Lie(lambda _: "id,patient,value\n", ANSWER, headers={"Content-Type": "text/csv"}),
    "nothing": Lie(lambda _: "", DIFFER),
    "null": Lie(lambda _: None, ROW),
    "a JSON list of the rows": Lie(objects, ROW),
    "rows over several lines": Lie(lambda asked: "\n".join(json.dumps(one, indent=2) for one in objects(asked)), ROW),
    "two rows on a line": Lie(lambda asked: honest(asked).replace(b"\n", b"", 1), ROW),
    "an OperationOutcome": Lie(lambda _: {"resourceType": "OperationOutcome", "issue": []}, DIFFER),
    "an object around the rows": Lie(lambda asked: {"rows": objects(asked)}, DIFFER),
    "the resources themselves in an object": Lie(lambda _: {"resourceType": "Parameters", "parameter": []}, DIFFER),
    "packed": Lie(lambda asked: gzip.compress(honest(asked)), ANSWER, headers={"Content-Encoding": "gzip"}),
    "packed, and the header does not say so": Lie(lambda asked: gzip.compress(honest(asked)), ROW),
    "a byte order mark": Lie(lambda asked: b"\xef\xbb\xbf" + honest(asked), ROW),
    "no UTF-8": Lie(first(lambda row: row.replace(b"Patient/", b"\xff\xfe")), ROW),
    "not a number": Lie(first(lambda row: re.sub(rb'"value":[^}]+', b'"value":NaN', row)), ROW),
    "nested too deeply": Lie(first(lambda row: row[:-1] + b',"x":' + b"[" * 9000 + b"]" * 9000 + b"}"), ROW),
    "an extra blank line": Lie(
        lambda asked: honest(asked).replace(b"\n", b"\n\n", 1), None, "it is no row, and the rows are all there"
    ),
    # Which rows
    "a row is missing": Lie(lines(lambda asked: asked.rows[1:]), DIFFER),
    "truncated between rows, with the length of what is left": Lie(lines(lambda asked: asked.rows[:-1]), DIFFER),
    "truncated in a row, with the length of what is left": Lie(lambda asked: honest(asked)[:-9], ROW),
    "a row twice": Lie(lines(lambda asked: [*asked.rows, asked.rows[0]]), DIFFER),
    "every row twice": Lie(lines(lambda asked: asked.rows * 2), DIFFER),
    "a row twice for another": Lie(lines(lambda asked: [asked.rows[1], *asked.rows[1:]]), DIFFER),
    "a row too many, of the answer before": Lie(lines(lambda asked: [*asked.rows, asked.before[0]]), DIFFER),
    "a row of the answer before for ours": Lie(lines(lambda asked: [asked.before[0], *asked.rows[1:]]), DIFFER),
    "the answer before": Lie(lines(lambda asked: asked.before), DIFFER),
    "the answer before and ours": Lie(lines(lambda asked: asked.before + asked.rows), DIFFER),
    "our rows with the ids of the answer before": Lie(lines(with_ids_of_before), DIFFER),
    "the rows of another view": Lie(lines(lambda asked: asked.others), DIFFER),
    "a row of another view among ours": Lie(lines(lambda asked: [*asked.rows, asked.others[0]]), DIFFER),
    "an empty row more": Lie(lines(lambda asked: [*asked.rows, b"{}"]), DIFFER),
    "an error behind the rows": Lie(lambda asked: honest(asked) + b"java.lang.OutOfMemoryError", ROW),
    "an error behind the rows, as an object": Lie(lambda asked: honest(asked) + b'{"error":"heap"}\n', DIFFER),
    "a header before the rows": Lie(lambda asked: b'{"columns":["id","patient"]}\n' + honest(asked), DIFFER),
    # Ids
    "no id": Lie(first(lambda row: re.sub(rb'"id":"[^"]+",', b"", row)), DIFFER),
    "an id that is null": Lie(identified(lambda _: b"null"), DIFFER),
    "an id that is empty": Lie(identified(lambda _: b'""'), DIFFER),
    "an id that is a number": Lie(identified(lambda _: b"17"), DIFFER),
    "an id that is a list": Lie(identified(lambda text: b"[" + text + b"]"), DIFFER),
    "an id that is an object": Lie(identified(lambda text: b'{"value":' + text + b"}"), DIFFER),
    "Type/id for the id": Lie(identified(lambda text: b'"Observation/' + text[1:]), DIFFER),
    "an id in capitals": Lie(identified(bytes.upper), DIFFER),
    "an id with a blank": Lie(identified(lambda text: text[:-1] + b' "'), DIFFER),
    "ids counted from 1": Lie(
        lines(lambda asked: [_ID.sub(b'"id":"%d"' % n, row) for n, row in enumerate(asked.rows, 1)]), DIFFER
    ),
    # Keys that stand twice
    "id twice": Lie(first(lambda row: b'{"id":"x",' + row[1:]), ROW),
    "id twice, both ours": Lie(first(lambda row: row[:-1] + b"," + row[1:]), ROW),
    "id twice, once escaped": Lie(first(lambda row: b'{"\\u0069d":"x",' + row[1:]), ROW),
    "id twice, with blanks": Lie(first(lambda row: b'{ "id" : null , ' + row[1:]), ROW),
    "a value twice": Lie(first(lambda row: row[:-1] + b',"value":7}'), ROW),
    "a key twice that is no column": Lie(first(lambda row: row[:-1] + b',"more":7,"more":8}'), ROW),
    # Cells
    "keys that are no columns": Lie(
        lambda asked: honest(asked).replace(b'"value"', b'"another"'),
        None,
        "null columns are left out, so every column may be missing; keys that are no column are warned of, and the "
        "table of groups names the columns that are empty",
    ),
    "values of two resources changed places": Lie(
        lines(lambda asked: [_ID.sub(b'"id":"%b"' % _id(two), one) for one, two in _changed(asked.rows)]),
        None,
        "the service evaluates the paths; Sluice only compares which resources the rows belong to",
    ),
    "another value": Lie(
        first(lambda row: re.sub(rb'"value":[^}]+', b'"value":99', row)), None, "the service computes the cells"
    ),
    # HTTP
    "201": Lie(honest, ANSWER, status=201),
    "202": Lie(honest, ANSWER, status=202),
    "204": Lie(lambda _: "", ANSWER, status=204),
    "206": Lie(honest, ANSWER, status=206),
    "a stream that breaks off": Lie(honest, "connection-broken", cut=True),
    "a redirect": Lie(lambda _: "", "redirect-refused", status=307, headers={"Location": "http://127.0.0.1:1/fhir"}),
}  # fmt: skip
EACH: dict[str, Lie] = {
    "forEach: a row of the answer before": Lie(lines(lambda asked: [*asked.rows, asked.before[0]]), DIFFER),
    "forEach: the answer before": Lie(lines(lambda asked: asked.before), DIFFER),
    "forEach: the rows of another view": Lie(lines(lambda asked: asked.others), DIFFER),
    "forEach: a row without an id": Lie(first(lambda row: re.sub(rb'"id":"[^"]+",', b"", row)), DIFFER),
    "forEach: truncated in a row": Lie(lambda asked: honest(asked)[:-9], ROW),
    "forEach: rows are missing": Lie(
        lines(lambda asked: asked.rows[1:]),
        None,
        "such a view gives any number of rows; the table of groups shows how many resources have rows",
    ),
    "forEach: every row twice": Lie(lines(lambda asked: asked.rows * 2), None, "such a view gives any number of rows"),
    "forEach: nothing": Lie(lambda _: "", None, "such a view gives any number of rows, also none"),
}
NULL: dict[str, Lie] = {
    "forEachOrNull: a resource has no row": Lie(lines(lambda asked: asked.rows[:-1]), DIFFER),
    "forEachOrNull: a row of the answer before": Lie(lines(lambda asked: [*asked.rows, asked.before[0]]), DIFFER),
    "forEachOrNull: nothing": Lie(lambda _: "", DIFFER),
    "forEachOrNull: every row twice": Lie(
        lines(lambda asked: asked.rows * 2), None, "such a view gives at least one row, and one for each element"
    ),
}
BY_GROUP = ((OBSERVATIONS, PLAIN), (CONDITIONS, EACH), (OR_NULL, NULL))
LIES = PLAIN | EACH | NULL


OF_ONE_ROW = {
    "a row twice for another", "two rows on a line", "no id", "packed", "no UTF-8", "not a number", "a byte order mark",
}  # fmt: skip
"""Lies that need more than the one row of the made-up resource, or columns that it has not."""
MADE_UP: dict[str, Lie] = {
    name: replace(lie, reference="wrong-service")
    for name, lie in PLAIN.items()
    if lie.reference in (ANSWER, ROW, DIFFER) and name not in OF_ONE_ROW
}
"""Lies about the made-up resource, which goes first."""


@pytest.mark.parametrize("name", MADE_UP)
def test_a_lie_about_the_made_up_resource_is_noticed_before_a_job_exists(name: str) -> None:
    lie = MADE_UP[name]
    asked = HonestRows(*([b'{"id":"%b"}' % one] for one in (b"sluice-probe-patient", b"before", b"another")))
    with FakeFlattening(lambda *_: lie.reply(lie.tell(asked))) as service:
        config = configuration({"flattening": {"service_url": service.url}}, attempts=1)
        (found,) = probed(declared_service(config), config)
        assert (found.reference, found.transient, len(service.requests)) == (lie.reference, False, 1)


def _id(row: bytes) -> bytes:
    return str(json.loads(row)["id"]).encode()


def _changed(rows: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    yield from zip(rows, [rows[1], rows[0], *rows[2:]], strict=True)


def line(number: int) -> dict[str, Any]:
    one = f"canary{number}"
    patient = resource("Patient", one, gender="female")
    values = [of_patient("Observation", f"{one}-o{n}", one, valueQuantity={"value": n + number}) for n in range(6)]
    codes: list[list[dict[str, str]]] = [[{"code": "I10"}, {"code": "E11"}], [{"code": "J45"}], []]
    conditions = [
        of_patient("Condition", f"{one}-c{n}", one, code={"coding": coding}) for n, coding in enumerate(codes)
    ]
    groups = {"g-pat": [patient], "g-obs": values, "g-cond": conditions, "g-code": conditions}
    named = [provenance(group, *members) for group, members in groups.items()]
    return bundle(f"b{number}", patient, *values, *conditions, *named)


def job_in(directory: Path) -> FlatteningJob:
    job = FlatteningJob(directory, VIEWS)
    job.write("a.ndjson", *map(line, range(8)))
    return job


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    job = job_in(tmp_path_factory.mktemp("honest"))
    with serving() as service:
        job.run(service.url, **SMALL)
    return job.tables()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "lie"),
    [pytest.param(group, lie, id=name) for group, lies in BY_GROUP for name, lie in lies.items()],
)
def test_a_lie_is_noticed_before_the_next_step_or_listed(
    group: GroupView, lie: Lie, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    answers: list[list[bytes]] = []

    def script(_: int, request: FlatteningRequest) -> Reply | None:
        if request.view["name"] != group.definition["name"]:
            return None
        rows = [row for one in request.resources for row in rows_of(request.view, one)]
        answers.append(rows)
        if len(answers) != 2:
            return None
        others = [b'{"id":"canary%d","gender":"female"}' % n for n in range(len(rows))]
        return lie.reply(lie.tell(HonestRows(rows, answers[0], others)))

    job = job_in(tmp_path)
    with FakeFlattening(script) as service:
        if lie.reference is None:
            job.run(service.url, **SMALL)
            return
        with pytest.raises(SluiceError) as caught:
            job.run(service.url, **SMALL)
        error, kept = caught.value, [(path.name, path.stat().st_mode & 0o777) for path in job.failed()]
        unfinished = job.tables()
        service.script = None
        job.run(service.url, **SMALL)
    assert (error.reference, error.transient) == (lie.reference, lie.cut)
    assert f"group {group.group_name}, batch 2" in (error.context or "")
    assert "anary" not in error.render()
    assert all(name.endswith(".partial") for name in unfinished)  # no later step sees it
    assert unfinished[f"{group.group_name}.csv.partial"].count(b"\n") == 1 + len(answers[0])
    assert all(mode == 0o600 and name in (error.hint or "") for name, mode in kept)
    assert job.tables() == expected
