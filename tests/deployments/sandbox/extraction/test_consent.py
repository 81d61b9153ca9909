"""Consent: extracted patients, their resources, and the audit files."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.deployments.sandbox.extraction.conftest import (
    EVERYBODY,
    Client,
    Start,
    attribute,
    ccdl,
    code,
    criterion,
    crtdl,
    group,
    patient,
    progress,
    resource,
    write,
)

POLICY = "2.16.840.1.113883.3.1937.777.24.5.3"
CODE = code(f"urn:oid:{POLICY}", f"{POLICY}.8")
COHORT = ccdl([criterion("Einwilligung", CODE), EVERYBODY])
QUERY = crtdl(group("obs", "Observation", attribute("Observation.code")), cohort=COHORT)
WITHOUT = crtdl(group("obs", "Observation", attribute("Observation.code")))


def provision(part: int, start: str, end: str, kind: str = "permit") -> dict[str, Any]:
    coding = {"system": f"urn:oid:{POLICY}", "code": f"{POLICY}.{part}"}
    return {"type": kind, "period": {"start": start, "end": end}, "code": [{"coding": [coding]}]}


def consent(key: str, *provisions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    made = {"status": "active", "dateTime": "2024-01-01", "provision": {"type": "deny", "provision": list(provisions)}}
    return resource("Consent", f"consent-{key}", key, PROFILE, **(made | fields))


PROFILE = "https://example.org/Consent"
USE = provision(8, "2024-01-01", "2054-12-31")
COLLECT = provision(6, "2024-01-01", "2025-12-31")


def observation(key: str, date: str | None, **fields: Any) -> dict[str, Any]:
    return resource("Observation", f"o-{key}-{date}", key, **({"effectiveDateTime": date} if date else {}), **fields)


@pytest.fixture
def extract(start: Start, tmp_path: Path) -> Any:
    """Return the extracted resources of patient p, with the given consents and observations of several dates."""

    def run(*consents: dict[str, Any], query: Any = QUERY, today: datetime | None = None) -> set[str]:
        days = ("2023-12-31", "2024-01-01", "2025-12-31", "2026-01-01", None)
        observations = [observation("p", day) for day in days]
        data = write(tmp_path / "data", patient("p", gender="male"), *consents, *observations)
        options = {"clock": lambda: today} if today else {}
        return set(start(data, **options).extract(query).resources)

    return run


def test_without_a_consent_criterion_everybody_consents(extract: Any) -> None:
    assert len(extract(query=WITHOUT)) == 6


def test_resources_must_lie_inside_the_permit_to_collect_undated_ones_pass(extract: Any) -> None:
    assert extract(consent("p", USE, COLLECT)) == {
        "Patient/p", "Observation/o-p-2024-01-01", "Observation/o-p-2025-12-31", "Observation/o-p-None",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("today", "allowed"), [("2026-03-01", True), ("2054-12-31", True), ("2055-01-01", False), ("2023-12-31", False)]
)
def test_today_must_lie_inside_the_permit_to_use(extract: Any, today: str, allowed: bool) -> None:
    moment = datetime.fromisoformat(today).replace(tzinfo=UTC)
    assert bool(extract(consent("p", USE, COLLECT), today=moment)) is allowed


def test_a_deny_takes_its_days_out_of_every_permit(extract: Any) -> None:
    deny = provision(6, "2025-01-01", "2030-01-01", "deny")
    assert extract(consent("p", USE, COLLECT, deny)) == {
        "Patient/p", "Observation/o-p-2024-01-01", "Observation/o-p-None",
    }  # fmt: skip
    assert extract(consent("p", USE, COLLECT, provision(8, "2026-01-01", "2027-01-01", "deny"))) == set()


def test_a_provision_without_a_period_has_that_of_the_one_around_it(extract: Any) -> None:
    within = {"type": "deny", "period": COLLECT["period"], "provision": [COLLECT | {"period": None}, USE]}
    assert len(extract(consent("p", provision=within))) == 4


def test_nobody_without_both_codes_and_only_active_consents_count(extract: Any) -> None:
    assert extract(consent("p", USE)) == set()
    assert extract(consent("p", USE, COLLECT, status="inactive")) == set()


@pytest.mark.parametrize(
    ("encounter", "included"),
    [(("2023-12-20", "2024-01-03"), True), (("2023-12-20", None), True), (("2023-12-20", "2023-12-31"), False),
     ((None, "2024-01-03"), False)],
)  # fmt: skip
def test_a_permit_during_an_encounter_counts_from_the_start_of_the_encounter(
    extract: Any, encounter: tuple[str | None, str | None], included: bool
) -> None:
    period = {name: day for name, day in zip(("start", "end"), encounter, strict=True) if day}
    found = extract(consent("p", USE, COLLECT), resource("Encounter", "e", "p", period=period))
    assert ("Observation/o-p-2023-12-31" in found) is included


class TestSkippedBatches:
    @pytest.fixture
    def client(self, start: Start, tmp_path: Path) -> Client:
        expired = provision(8, "2020-01-01", "2025-12-31")
        data = write(
            tmp_path / "data",
            patient("a", gender="male"), consent("a", USE, COLLECT),
            patient("b", gender="male"), consent("b", expired, COLLECT),
            resource("Encounter", "e", "b", period={"start": "2025"}, status="finished", length={"value": 1.50}),
            patient("c", gender="male"),
        )  # fmt: skip
        return start(data, batchsize=1, maxconcurrency=1, held=True)

    def test_batches_in_which_nobody_consents_are_skipped_with_a_warning(self, client: Client) -> None:
        result = client.extract(QUERY)
        assert (set(result.resources), len(result.manifest["output"])) == ({"Patient/a"}, 1)
        assert result.left_out() == {("CONSENT", "b"), ("CONSENT", "c")}
        assert result.summary["Patient-Exclusions"]["CONSENT"] == 2
        assert [batch["state"] for batch in result.batches] == ["FINISHED", "SKIPPED", "SKIPPED"]
        assert progress(client.task(result.job))["batchesCompleted"] == 3
        issues = result.extension("extractor-job-issues")
        assert issues is not None
        assert [(issue["severity"], issue["diagnostics"]) for issue in issues["valueObject"]] == [
            ("WARNING", f"batch {batch['id']}") for batch in result.batches[1:]
        ]

    def test_the_task_links_each_audit_file_that_there_is_once_the_job_is_completed(self, client: Client) -> None:
        job = client.submit(QUERY)
        assert "output" not in client.reach(job, "RUNNING_PROCESS_CORE")
        result = client.result(job)
        # Nothing was read for the third batch.
        urls = [f"{client.base_url}/output/{job}/{batch['id']}_consent.ndjson" for batch in result.batches[:2]]
        assert client.task(job)["output"] == [
            {"type": {"text": "Consent audit NDJSON"}, "valueUrl": url} for url in urls
        ]
        assert not any("_consent" in entry["url"] for entry in result.manifest["output"])

    def test_each_line_has_minimized_consents_and_encounters_of_one_patient(self, client: Client) -> None:
        result = client.extract(QUERY)
        lines = [
            json.loads(line)
            for entry in client.task(result.job)["output"]
            for line in client.get(entry["valueUrl"]).text.splitlines()
        ]
        assert [(line["resourceType"], line["type"], len(line["entry"])) for line in lines] == [
            ("Bundle", "collection", 1),
            ("Bundle", "collection", 2),
        ]
        found = [entry["resource"] for entry in lines[1]["entry"]]
        assert set(found[0]) == {"resourceType", "id", "meta", "status", "patient", "dateTime", "provision"}
        assert found[0]["meta"] == {"profile": [PROFILE]}
        assert found[1] == {
            "resourceType": "Encounter", "id": "e", "subject": {"reference": "Patient/b"}, "period": {"start": "2025"},
        }  # fmt: skip

    def test_without_a_need_for_consent_there_is_no_audit(self, client: Client) -> None:
        result = client.extract(WITHOUT)
        assert "output" not in client.task(result.job)
