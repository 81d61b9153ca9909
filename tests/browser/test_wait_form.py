"""The form of a wait in the Prefect UI, in a real browser: a person reads the report and decides, the job goes on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Commands, wait_until
from tests.peers.project import Fhir

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: see the extra browser")

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"),
]


@pytest.fixture
def page() -> Iterator[Page]:
    """Yield a tab of the machine's Chromium that reaches this machine alone."""
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*options, "--disable-dev-shm-usage"])
        tab = browser.new_page()
        tab.set_default_timeout(90_000)
        tab.route(lambda url: "127.0.0.1" not in url, lambda route: route.abort())
        yield tab
        browser.close()


def open_run(page: Page, root: str, job: str) -> None:
    page.goto(f"{root}/runs/flow-run/{job}")
    page.locator("li.p-tab#logs").wait_for()


def test_a_person_reads_the_report_and_releases_the_data_in_the_ui(
    page: Page, sluice: Commands, prefect_api: str, project: Path, fhir: Fhir
) -> None:
    config = project / "config.yaml"
    config.write_text(config.read_text().replace("report: {enabled: false}", "report: {enabled: true}"))
    started = sluice("pipeline", "start", "config.yaml")
    assert started.code == 0, started.err
    root = prefect_api.removesuffix("/api")
    page.goto(f"{root}/login")
    page.locator("input[type=password]").fill(os.environ["PREFECT_API_AUTH_STRING"])
    page.get_by_role("button", name="Login").click()
    page.wait_for_url(lambda url: not url.startswith(f"{root}/login"))

    open_run(page, root, started.job)
    page.locator("li.p-tab#artifacts").click()
    page.locator(".artifact-card", has_text="The release report").first.click()
    page.get_by_text("Do not release").first.wait_for()

    open_run(page, root, started.job)
    page.get_by_role("button", name="Resume").click()
    form = page.locator(".p-modal")
    form.locator(".p-select-button__icon").click()
    page.locator(".p-select-option", has_text="release").click()
    for name in ("Your name", "Comment"):
        field = form.locator(".schema-form-property", has=page.locator("label", has_text=name))
        field.first.locator("textarea").fill("Anna Data looked at it")
    with page.expect_response(lambda answer: answer.url.endswith("/resume")) as answer:
        form.get_by_role("button", name="Submit").click()
    assert answer.value.ok

    wait_until(lambda: sluice.status(started.job)["state"] != "waiting")
    assert fhir.total() == 0  # nobody runs a local job but a command
    done = sluice("pipeline", "continue", "config.yaml", started.job)
    assert done.code == 0, done.err
    assert "Anna Data looked at it" in json.dumps(sluice.status(started.job))
    assert fhir.total() == 19
