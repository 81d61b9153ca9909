"""A step that was interrupted goes on between the parts that are there (docs/steps.md).

Kills and changed inputs are in the tables of all steps (``tests/tasks/test_step_*.py``).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.flattening.routing import Resource
from tasks.flattening.tables import Batch, GroupTable
from tasks.flattening.views import GroupView
from tasks.shared.errors import SluiceError
from tests.peers.data import grouped_person
from tests.peers.server import Reply, ScriptedServer
from tests.tasks.flattening.place import FlatteningPlace, sent

LINES = [grouped_person(number, 4, 90_000) for number in range(8)]


def interrupted(place: FlatteningPlace, service: ScriptedServer, after: int = 6, **more: int) -> None:
    """Run until so many requests were answered."""
    left = iter(range(after))
    service.script = lambda _: Reply(400) if next(left, None) is None else None
    with pytest.raises(SluiceError):
        place.run(service.url, **more)
    service.script = None


def asked(service: ScriptedServer, begin: int) -> list[str]:
    return [one for seen in service.seen[begin:] for one in sent(seen)[1]]


@pytest.mark.parametrize("batch_size_mb", [1, 2, 500])
def test_finished_parts_survive_another_batch_size(tmp_path: Path, service: ScriptedServer, batch_size_mb: int) -> None:
    whole, place = FlatteningPlace(tmp_path / "whole"), FlatteningPlace(tmp_path / "interrupted")
    for one in (whole, place):
        one.write("a.ndjson", *LINES[:5])
        one.write("b.ndjson", *LINES[5:])
    expected = whole.run(service.url, batch_size_mb=1)
    interrupted(place, service, batch_size_mb=1)
    parts = place.parts()
    assert sum(map(len, parts.values())) > 3
    begin = len(service.seen)
    report = place.run(service.url, batch_size_mb=batch_size_mb)
    assert place.tables() == whole.tables()
    left = {table: place.ids(table) for table in ("Patient", "Diagnosen", "Labor")}  # one row for each resource
    for table, names in parts.items():
        for first, end in (map(int, name.split("-")[:2]) for name in names):
            left[table][first:end] = [""] * (end - first)
    assert sorted(asked(service, begin)) == sorted(one for ids in left.values() for one in ids if one)
    for found, made in zip(report.details["groups"], expected.details["groups"], strict=True):
        assert found | {"batches": 0} == made | {"batches": 0}
    assert not (place.job / "csv" / ".parts").exists()


@pytest.mark.parametrize("change", ["lookup", "input"])
def test_parts_of_another_plan_are_thrown_away_with_a_warning(
    place: FlatteningPlace, service: ScriptedServer, change: str
) -> None:
    place.write("a.ndjson", *LINES)
    interrupted(place, service, batch_size_mb=1)
    begin = len(service.seen)
    if change == "lookup":
        place.lookup.write_text(place.lookup.read_text().replace('"name": "gender"', '"name": "sex"'))
    else:
        place.write("a.ndjson", *LINES, grouped_person(9))
    report = place.run(service.url, batch_size_mb=1)
    assert "tables are made again: the input, the views or the service has changed" in report.warnings
    for table in ("Patient", "Diagnosen", "Labor"):
        assert set(place.ids(table)) <= set(asked(service, begin))


def test_a_lookup_changed_after_the_end_makes_the_tables_again(place: FlatteningPlace, service: ScriptedServer) -> None:
    place.write("a.ndjson", grouped_person(1))
    place.run(service.url)
    place.lookup.write_text(place.lookup.read_text().replace('"name": "gender"', '"name": "sex"'))
    report = place.run(service.url)
    assert place.tables()["Patient.csv"].startswith(b"id,sex\n")
    assert len(report.warnings) == 1


def test_what_is_missing_of_a_joined_table_is_made_again_and_no_other(
    place: FlatteningPlace, service: ScriptedServer
) -> None:
    place.write("a.ndjson", *LINES)
    first = place.run(service.url)
    tables, begin = place.tables(), len(service.seen)
    (place.job / "csv" / "Patient.csv").unlink()
    second = place.run(service.url)
    assert [sent(seen)[0] for seen in service.seen[begin:]] == ["Patient"]
    assert place.tables() == tables
    assert second.details == first.details


def test_tables_of_groups_that_are_gone_are_removed(tmp_path: Path, service: ScriptedServer) -> None:
    place = FlatteningPlace(tmp_path)
    place.write("a.ndjson", grouped_person(1))
    place.run(service.url)
    fewer = FlatteningPlace(tmp_path, place.groups[:2])
    fewer.run(service.url)
    assert sorted(fewer.tables()) == ["Diagnosen.csv", "Patient.csv"]
    assert sorted(path.name for path in (fewer.job / "viewdefinitions").iterdir()) == ["Diagnosen.json", "Patient.json"]


VIEW = GroupView("g", "g", "u", "Patient", {"resource": "Patient", "select": []}, ("id",))
SIZES = st.lists(st.integers(0, 300), min_size=1, max_size=40)


def packed(directory: Path, sizes: list[int], share: int) -> list[Batch]:
    table = GroupTable(VIEW, directory, share, finished=False)
    made = [
        batch for number, size in enumerate(sizes)
        for batch in table.add(Resource("Patient", str(number), b'{"x":"%b"}' % (b"x" * size)))
    ]  # fmt: skip
    return [*made, *table.end()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(SIZES, st.integers(1, 1500), st.integers(1, 1500), st.sets(st.integers(0, 40)))
def test_batches_fill_the_gaps_between_parts_whatever_their_size_is(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], first: int, second: int, done: set[int]
) -> None:
    directory = tmp_path_factory.mktemp("parts")
    before = packed(directory, sizes, first)
    assert [one for batch in before for one in batch.ids] == [str(number) for number in range(len(sizes))]
    assert all(len(batch.body) <= first or len(batch.ids) == 1 for batch in before)
    kept = [batch for number, batch in enumerate(before) if number in done]
    for batch in kept:
        (directory / f"{batch.first}-{batch.first + len(batch.ids)}-1-1.csv").touch()
    after = packed(directory, sizes, second)
    ranges = sorted((batch.first, batch.first + len(batch.ids)) for batch in (*kept, *after))
    assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == len(sizes)
