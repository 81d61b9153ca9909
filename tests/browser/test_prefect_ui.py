"""Use of the Prefect UI in a real browser (4-product.md §5; issue 7, Show 1)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

from flows.engine.api import PrefectApi
from flows.reports.pages import literal
from tests.conftest import address_of, wait_until

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: see the extra browser")

from tests.browser.conftest import RESOURCES, BrowserSite
from tests.browser.ui import Ui

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(400)]

SLOW = {"action": "delay", "method": "POST", "times": None, "seconds": 5}
"""For each transaction: there is time to look at a send while it runs."""

TRANSACTIONS = 18
"""One for each Bundle of the input."""


def begun(ui: Ui, site: BrowserSite, config: Path) -> str:
    """Start a run from the deployment's form; its id."""
    ui.open_deployment(site.deployment)
    return ui.custom_run(config=config)


def until(site: BrowserSite, config: Path, job: str, state: str) -> None:
    wait_until(lambda: site.commands.status(job, config)["state"] == state, 120)


def test_a_run_is_started_in_the_form_followed_approved_and_completed(ui: Ui, site: BrowserSite) -> None:
    config = site.configuration("heart-study", "local_import", "pseudonymizer", "wait", "send")
    site.faults("fhir", {"action": "status", "method": "POST", "status": 503, "skip": 2}, SLOW)

    ui.open_deployment(site.deployment)
    ui.page.locator("li.p-tab#description").click()
    ui.wait_for_text("Moves FHIR data through the steps that a configuration enables", "deployment")
    job = ui.custom_run(config=config, input=site.directory / "data")

    ui.see_state("Suspended")
    assert re.search(rf"heart-study \d{{4}}-\d\d-\d\d \d\d:\d\d {job[:8]}", ui.read("suspended"))
    assert ui.task_runs(job) == {
        "local_import": "Completed", "pseudonymizer": "Completed", "release report": "Completed", "wait": "Paused",
    }  # fmt: skip
    assert site.commands.status(job, config)["state"] == "waiting"
    said = ui.resume("release", by="Anna Data", comment="looked at it", despite="made up")
    directory = site.directory / "jobs" / job
    assert f"{directory}/pseudonymized" in said
    assert f"{directory}/pseudonymized_wait" in said
    assert "goes on with send" in said

    pattern = (
        r"The page of the job: running step 4, send, [1-9]\d? %: "
        r"sending, (\d/3 files, )?\d+ resources, [\d.]+ k?B at [\d.]+ k?B/s, (\d+ min )?\d+ s left"
    )
    wait_until(lambda: re.fullmatch(pattern, ui.title(job)) is not None, 60)
    assert site.commands.status(job, config)["state"] == "running"
    site.faults("fhir")

    ui.open_run(job)
    ui.see_state("Completed")
    until(site, config, job, "completed")
    assert ui.task_runs(job)["send"] == "Completed"
    assert ui.title(job) == "The page of the job: completed"

    page = ui.open_page(job, until="approved by Anna Data in the Prefect UI")
    assert re.findall(r"^Step \d, \w+$", page, re.MULTILINE) == [
        "Step 1, local_import", "Step 2, pseudonymizer", "Step 3, wait", "Step 4, send"
    ]  # fmt: skip
    steps, times, reconciled, *_, facts = ui.tables()
    assert [row[1:3] for row in steps[1:]] == [
        [name, "completed"] for name in ("local_import", "pseudonymizer", "wait", "send")
    ]
    assert dict(zip(steps[0], steps[4], strict=True))["resources in"] == str(RESOURCES)
    sent = dict(zip(times[0], times[4], strict=True))
    assert sent["retries"] == "1"
    assert int(sent["requests"]) >= TRANSACTIONS
    assert re.fullmatch(r"[\d.]+ (MB|kB|B)/s", sent["rate"])
    number, unit = sent["p95"].split()
    assert float(number) * {"ms": 1e-3, "s": 1.0}[unit] >= 1.9
    assert int(sent["p50"].removesuffix(" ms")) > 0
    assert [row[-1] for row in reconciled[1:]] == ["agrees"] * (len(reconciled) - 1)
    assert [row[1] for row in reconciled[1:]] == ["pseudonymizer", "send"]

    assert ["retries", "1"] in facts
    assert ["resources out", str(RESOURCES)] in facts
    assert site.listed(config)[job] == "completed"
    assert site.commands("pipeline", "continue", config, job).code == 0


def test_a_cancel_in_the_ui_ends_the_job_as_cancelled_and_its_process(ui: Ui, site: BrowserSite) -> None:
    config = site.configuration("cancelled-study", "local_import", "send")
    site.faults("fhir", SLOW)
    job = begun(ui, site, config)
    ui.see_state("Running")
    until(site, config, job, "running")
    wait_until(lambda: site.commands.status(job, config)["step"] == "send", 60)
    process = re.search(r"runs in process (\d+)", site.log(job))
    assert process is not None

    ui.open_run(job)
    ui.cancel()
    ui.see_state("Cancelled")
    until(site, config, job, "cancelled")
    wait_until(lambda: not Path(f"/proc/{process[1]}").exists(), 60)
    assert site.listed(config)[job] == "cancelled"
    # The server takes what happened to a task run in its own time.
    wait_until(lambda: ui.task_runs(job).get("send") == "Stopped", 60)
    assert ui.title(job) == "The page of the job: cancelled"
    refused = site.commands("pipeline", "continue", config, job)
    assert refused.code == 1
    assert "error[job-cancelled]" in refused.err


def test_a_retry_in_the_ui_goes_on_with_the_step_that_failed(ui: Ui, site: BrowserSite) -> None:
    config = site.configuration("failed-study", "local_import", "pseudonymizer", "send")
    site.faults("fhir", {"action": "status", "method": "POST", "status": 403, "skip": 4, "times": None})
    job = begun(ui, site, config)
    ui.see_state("Failed")
    until(site, config, job, "failed")
    reference = site.commands.status(job, config)["error"]["reference"]
    ui.open_page(job, until=reference)
    ui.open_run(job, "details")
    ui.wait_for_text(reference, "failed")
    logs = ui.logs(job, until=f"the job is failed: {reference} in step send; continue with: ")
    assert "Traceback" not in logs
    ui.open_run(job)

    site.faults("fhir")
    before = site.posts()
    ui.retry()
    ui.see_state("Completed")
    until(site, config, job, "completed")
    log = site.log(job)
    assert log.count("step 1 local_import begins") == log.count("step 2 pseudonymizer begins") == 1
    assert log.count("step 3 send begins") == 2
    assert site.posts() - before == TRANSACTIONS - 4, "what was in before the refusal is not sent again"
    assert ui.title(job) == "The page of the job: completed"


def test_the_wait_form_has_no_preset_and_requires_a_choice_and_a_name(ui: Ui, site: BrowserSite) -> None:
    config = site.configuration("undecided-study", "local_import", "wait", "send")
    before = site.posts()
    job = begun(ui, site, config)
    ui.see_state("Suspended")
    resumed: list[str] = []
    ui.page.on("request", lambda request: resumed.append(request.url) if request.url.endswith("/resume") else None)

    form = ui.resume_form()
    assert form.locator(".p-select-button__value").inner_text().strip() == ""
    assert [field.input_value() for field in form.locator("textarea").all()] == ["", "", ""]
    submit = form.get_by_role("button", name="Submit")
    submit.click()
    said = ui.wait_for_text("'decision' is a required property", "nothing-decided")
    assert "'by' is a required property" in said
    ui.choose("release")
    submit.click()
    form.get_by_text("'decision' is a required property").wait_for(state="detached")
    assert "'by' is a required property" in form.inner_text()
    assert resumed == [], "the form itself says what is missing"
    ui.parameter("Name").locator("textarea").fill("  ")
    submit.click()
    ui.wait_for_text("Validation failed for field 'by'", "nobody-decided")  # that it is blank is the server's to find
    assert site.commands.status(job, config)["state"] == "waiting"
    assert site.posts() == before

    ui.parameter("Name").locator("textarea").fill("Anna Data")
    submit.click()
    wait_until(lambda: "no reason is given" in site.commands("pipeline", "status", config, job).out, 300)
    ui.open_run(job)
    ui.see_state("Suspended")
    said = ui.resume("release", by="Anna Data", comment="", despite="made up")
    assert "no reason is given" in said
    assert "Do not release" in said
    assert "Patient.name" in said
    assert site.posts() == before
    ui.see_state("Completed")
    until(site, config, job, "completed")
    (approval,) = site.commands.status(job, config)["approvals"]
    assert (approval["by"], approval["where"], approval["comment"]) == ("Anna Data", "ui", None)
    assert approval["despite"] == "made up"


def test_the_form_speaks_the_language_of_the_report_and_cuts_no_path_off(ui: Ui, site: BrowserSite) -> None:
    config = site.configuration("studie", "local_import", "wait", "send")
    with config.open("a") as file:
        file.write("report: {language: de}\n")
    maiden = {"url": "http://hl7.org/fhir/StructureDefinition/patient-mothersMaidenName", "valueString": "Canaryname"}
    patients = [{"resourceType": "Patient", "id": f"{number}", "extension": [maiden]} for number in range(6)]
    data = site.directory / "maiden"
    data.mkdir()
    (data / "patients.ndjson").write_text("".join(f"{json.dumps(one)}\n" for one in patients))
    before = site.posts()
    ui.open_deployment(site.deployment)
    job = ui.custom_run(config=config, input=data)
    ui.see_state("Suspended")
    form = ui.resume_form()
    assert form.locator(".schema-form-property__label").all_inner_texts() == [
        "Entscheidung", "Name", "Anmerkung (Optional)", "Begründung, wenn der Freigabebericht Stopps hat (Optional)",
    ]  # fmt: skip
    said = ui.read("formular")
    assert "Nicht freigeben. " in said
    assert "patient-mothersMaidenName).valueString" in said.replace("\n", "")
    assert "legen Sie korrigierte Dateien" in said
    wider = "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText)"
    assert form.locator("p, li, code").evaluate_all(wider) == []
    ui.choose("reject")
    ui.parameter("Name").locator("textarea").fill("Anna Data")
    form.get_by_role("button", name="Submit").click()
    ui.see_state("Cancelled")
    until(site, config, job, "cancelled")
    assert site.posts() == before


def test_a_rejection_in_the_form_ends_the_job_as_cancelled(ui: Ui, site: BrowserSite) -> None:
    config = site.configuration("rejected-study", "local_import", "wait", "send")
    before = site.posts()
    ui.open_deployment(site.deployment)
    job = ui.custom_run(config=config, named="The third try")
    ui.see_state("Suspended")
    assert "the job waits at step 2 for a person's decision" in ui.logs(job, until="the job waits at step 2")
    ui.open_run(job)
    ui.resume("reject", by="Anna Data", comment="the wrong cohort")
    ui.see_state("Cancelled")
    until(site, config, job, "cancelled")
    assert site.listed(config)[job] == "cancelled"
    assert "the wrong cohort" in site.commands("pipeline", "status", config, job).out
    page = ui.open_page(job, until="was rejected by Anna Data in the Prefect UI")
    assert "The job is cancelled." in page
    assert "The third try" in page
    assert site.posts() == before
    logs = ui.logs(job, until="the job is cancelled: rejected by Anna Data")
    assert "Traceback" not in logs
    assert "Engine execution" not in logs
    ui.page.goto(f"{ui.root}/runs")
    ui.wait_for_text("The third try", "runs")


def test_a_job_of_the_form_that_is_approved_on_the_command_line_completes_in_the_ui(ui: Ui, site: BrowserSite) -> None:
    config = site.configuration("approved-study", "local_import", "wait", "send")
    job = begun(ui, site, config)
    ui.see_state("Suspended")
    approved = site.commands("pipeline", "continue", config, job, "--approve", "--by", "Bo", "--despite", "made up")
    assert approved.code == 0, approved.err
    ui.see_state("Completed")
    until(site, config, job, "completed")
    ui.open_page(job, until="Step 2 (wait) was approved by Bo on the command line")


def test_the_form_shows_few_named_parameters_with_descriptions_and_a_field_for_each(ui: Ui, site: BrowserSite) -> None:
    ui.open_deployment(site.deployment)
    ui.open_form()
    labels = ui.page.locator(".schema-form-property__label").all_inner_texts()
    assert labels == ["config", *(f"{name} (Optional)" for name in
                      ("crtdl", "input", "anonymization_config", "patients", "overrides"))]  # fmt: skip
    assert ui.page.locator(".schema-form-property textarea").count() == 5
    assert "None" not in ui.read("form")


def test_a_configuration_that_is_not_there_is_said_on_the_page_of_the_run(ui: Ui, site: BrowserSite) -> None:
    begun(ui, site, site.directory / "missing.yaml")
    ui.see_state("Failed")
    ui.page.locator("li.p-tab#details").click()
    ui.wait_for_text("config-not-found", "missing")
    ui.page.get_by_text("See More").click()
    ui.wait_for_text("missing.yaml", "missing")


HOSTILE = (
    "<img src='http://outside.example/a.png'>",
    "![x](http://outside.example/b.png)",
    "[click](http://outside.example/c)",
    "<script>document.body.innerHTML = ''</script>",
    "# heading", "1. one", "- item", "__init__ and _x_", "*bold* 2*3", "`code` \\ | ~~x~~", "a&lt;b", "<Type>",
    "http://outside.example/d", "root@host.example", "---", "> quote", "a | b",
)  # fmt: skip
"""Names that a CRTDL or a server might bring."""


def test_names_from_outside_stand_in_tables_as_they_are_and_fetch_nothing(ui: Ui, site: BrowserSite) -> None:
    with PrefectApi(address_of(site.api)) as api:
        flow = api.request("POST", "/flows/", {"name": "literal"})
        run = api.request("POST", "/flow_runs/", {"name": "literal", "flow_id": flow["id"]})["id"]
        rows = httpx.Response(200, json=[{"text": literal(text)} for text in HOSTILE]).text
        body = {"key": "literal", "type": "table", "data": rows, "description": literal(HOSTILE[0]), "flow_run_id": run}
        artifact = api.created("/artifacts/", body)
    ui.page.goto(f"{ui.root}/artifacts/artifact/{artifact}")
    ui.page.get_by_text("Show raw data").wait_for()
    assert HOSTILE[0] in ui.read("literal")
    (table,) = ui.tables()
    assert [cells[0] for cells in table[1:]] == list(HOSTILE)
    assert ui.page.locator("td a, td img").count() == 0
