"""Lookup file, views, step and the sandbox's flattening service together, over the data of the demo."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.flattening.app import FlatteningOptions, flattening_service
from tasks.flattening.flattening import FlatteningBounds
from tasks.flattening.views import views
from tests.peers.data import PROFILE, provenance, resource
from tests.peers.data import identified as bundle
from tests.peers.flattening import FlatteningJob, demo_job
from tests.tasks.flattening.lookups import column, crtdl, element, group, lookup_of, table


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_tables_of_the_demo_are_what_a_plain_loop_gives(tmp_path: Path) -> None:
    job, of_type = demo_job(tmp_path)
    with serve_in_thread(flattening_service(FlatteningOptions())) as served:
        result = job.run(served.url, bounds=FlatteningBounds(mebibyte=4000), batch_size_mb=3)
    assert rows(job.output / "pat.csv") == [
        {"id": one["id"], "gender": one.get("gender", ""), "birthDate": one.get("birthDate", "")}
        for one in of_type["Patient"]
    ]
    assert rows(job.output / "cond.csv") == [
        {"id": one["id"], "patient": one["subject"]["reference"]}
        | {name: code.get(name, "") for name in ("system", "code", "display")}
        for one in of_type["Condition"]
        for code in one.get("code", {}).get("coding", ())
    ]
    quantities = [(one, one.get("valueQuantity", {}).get("value", "")) for one in of_type["Observation"]]
    assert rows(job.output / "obs.csv") == [
        {"id": one["id"], "patient": one["subject"]["reference"], "value": str(value)} for one, value in quantities
    ]
    assert any("." in str(value) for _, value in quantities)
    assert len(of_type["Condition"]) > 10
    assert result.details["routed_by"] == "profile and type"
    assert result.details["requests"] > 6


def test_two_codings_a_decimal_and_a_text_with_everything_in_it(tmp_path: Path) -> None:
    coding = {"forEach": "code.coding", "column": column("code", "display")["column"]}
    lookup = lookup_of(tmp_path, table({"Condition.code": element(coding)}, url=PROFILE + "cond"))
    job = FlatteningJob(tmp_path / "job")
    job.crtdl = crtdl(group("Condition.code", reference=PROFILE + "cond", name="cond", key="cond"))
    job.views, _ = views(job.crtdl, lookup)
    codes = [{"code": "I10", "display": 'Größe, "quer"\nzweite Zeile'}, {"code": "1.50"}]
    one = resource("Condition", "c", subject={"reference": "Patient/p"}, code={"coding": codes})
    job.write("a.ndjson", bundle("b", one, provenance("cond", one)))
    with serve_in_thread(flattening_service(FlatteningOptions())) as served:
        job.run(served.url)
    assert job.tables()["cond.csv"].decode() == (
        'id,patient,code,display\nc,Patient/p,I10,"Größe, ""quer""\nzweite Zeile"\nc,Patient/p,1.50,\n'
    )
