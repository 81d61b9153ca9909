"""The release report is opened from the form and the artifact in the Prefect UI (issue 33, 2; document 5 §3)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: see the extra browser")

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.fhir.app import FhirOptions, fhir_service
from tests.browser.ui import Ui
from tests.conftest import Commands, seed
from tests.deployments.test_server import own_server
from tests.peers.project import write_input

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(400)]

LOGIN = "anna:a pass word"


@dataclass
class WaitingJob:
    """A job that waits, the server that shows its report, and how a browser signs in there."""

    root: str
    job: str
    directory: Path
    link: str | None
    """What signs a browser in; without one the UI asks for ``LOGIN``."""

    @property
    def address(self) -> str:
        return f"{self.root}/sluice/report/{self.job}/step-2/release-report.html"


@pytest.fixture(scope="module", params=["embedded", "jobs", "copies"])
def parked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, migrated_database: Path
) -> Iterator[WaitingJob]:
    """Yield a job at its wait with the server of its jobs directory, and with one for several machines."""
    place = tmp_path_factory.mktemp(request.param)
    write_input(place / "data")
    (place / "site").mkdir()
    copies = request.param == "copies"
    with ExitStack() as stack:
        fhir = stack.enter_context(serve_in_thread(fhir_service(FhirOptions(state=place / "fhir"))))
        (place / "config.yaml").write_text(
            f"""
services: {{local_import: {{dir: data}}, send: {{send_as: direct_resource_load, url: "{fhir.url}"}}}}
pipeline: {{enabled_steps: [local_import, wait, send]}}
jobs_dir: jobs
report: {{{"copy_to: site" if copies else ""}}}
"""
        )
        if request.param == "embedded":
            seed(place / "jobs", migrated_database)
            commands = Commands(place, None)
            out = commands("server", "start", "config.yaml", "--port", "0").out
            stack.callback(commands, "server", "stop", "config.yaml")
            (link,) = re.findall(r"^Prefect UI: (\S+)", out, re.MULTILINE)
            root = link.partition("/sluice/")[0]
        else:
            (place / "jobs").mkdir(exist_ok=True)
            reports = place / ("site" if copies else "jobs")
            root, _ = stack.enter_context(
                own_server(place / "server", migrated_database, "--reports", str(reports), login=LOGIN)
            )
            link = None
            commands = Commands(place, f"{root}/api")
            commands.environment["PREFECT_API_AUTH_STRING"] = LOGIN
        stack.callback(commands.close)
        started = commands("pipeline", "start", "config.yaml")
        assert started.code == 0, started.err
        yield WaitingJob(root, started.job, place / "jobs" / started.job, link)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context(viewport={"width": 1400, "height": 1000}) as context:
        yield context


def signed_in(context: BrowserContext, parked: WaitingJob, pictures: Path) -> Ui:
    ui = Ui(context.new_page(), parked.root, pictures)
    if parked.link is not None:
        ui.sign_in(parked.link)
    else:
        ui.page.goto(f"{parked.root}/runs")
        ui.page.locator("input[type=password]").fill(LOGIN)
        ui.page.get_by_role("button", name="Login").click()
        ui.page.wait_for_url(f"{parked.root}/runs")
    return ui


def watched(page: Page) -> list[str]:
    """Return a list that collects the page's requests and dialogs from now on."""
    seen: list[str] = []
    page.on("request", lambda request: seen.append(f"{request.method} {request.url}"))
    page.on("dialog", lambda dialog: seen.append(dialog.message))
    return seen


def is_shown(page: Page, parked: WaitingJob) -> None:
    page.locator("h1").wait_for()
    assert page.locator("html").get_attribute("lang") == "en"
    assert "Do not release" in page.locator("h1").inner_text()
    made = (parked.directory / "report/step-2/release-report.html").read_text()
    assert page.locator("title").text_content() == re.findall("<title>(.*?)</title>", made)[0]
    assert page.locator("script").count() == 0
    assert page.url == parked.address


def test_the_form_and_the_artifact_open_the_report(context: BrowserContext, parked: WaitingJob, tmp_path: Path) -> None:
    ui = signed_in(context, parked, tmp_path)
    ui.open_run(parked.job)
    form = ui.resume_form()
    ui.read("form")
    with context.expect_page() as opened:
        form.get_by_role("link", name="Open the report").click()
    page = opened.value
    is_shown(page, parked)
    page.screenshot(path=tmp_path / "opened.png")
    page.locator(".lines .stop a").first.click()
    assert re.fullmatch(re.escape(parked.address) + r"#s\d+", page.url)
    assert page.locator("h1").count() == 1
    page.locator("details summary").first.click()
    page.goto(parked.address)
    is_shown(page, parked)
    page.reload()
    is_shown(page, parked)
    ui.open_run(parked.job, "artifacts")
    ui.page.locator(".artifact-card", has_text="The release report").first.click()
    with context.expect_page() as opened:
        ui.page.get_by_role("link", name="Open the report").click()
    is_shown(opened.value, parked)
    assert context.cookies() == []
    assert ui.elsewhere == []


def test_nothing_in_the_report_runs_or_is_loaded(context: BrowserContext, parked: WaitingJob, tmp_path: Path) -> None:
    """The page's policy stops scripts that hostile data would bring into it, also where the UI shows the page."""
    evil = f"""<!DOCTYPE html><html lang="en"><head><title>x</title></head><body><h1>Do not release</h1>
    <script>document.title = "ran"; fetch("/api/flows/count", {{method: "POST"}})</script>
    <img src="{parked.root}/ico/favicon.ico" onerror="document.title = 'ran'" onload="document.title = 'ran'">
    <iframe src="{parked.root}/runs"></iframe><form action="{parked.root}/api/admin/database/clear"><input></form>
    <a href="javascript:document.title='ran'">link</a></body></html>"""
    ui = signed_in(context, parked, tmp_path)
    ui.page.route(
        parked.address,
        lambda route: route.fulfill(status=200, content_type="text/html; charset=utf-8", body=evil)
        if "authorization" in route.request.headers else route.continue_(),
    )  # fmt: skip
    ui.page.goto(f"{parked.root}/sluice/sign-in")  # the UI asks for more at any time
    asked = watched(ui.page)
    ui.page.goto(parked.address)
    ui.page.locator("h1").wait_for()
    ui.page.get_by_role("link", name="link").click()
    ui.page.evaluate("document.querySelector('form').submit()")
    ui.page.wait_for_timeout(500)
    assert ui.page.evaluate("document.title") == "x"
    assert [one for one in asked if "favicon-32x32" not in one] == [f"GET {parked.address}"] * 2  # the tab has an icon


def test_signed_out_nobody_sees_it(context: BrowserContext, parked: WaitingJob, tmp_path: Path) -> None:
    ui = Ui(context.new_page(), parked.root, tmp_path)
    answer = ui.page.goto(parked.address)
    assert answer is not None
    assert answer.status == 401
    assert "Do not release" not in ui.wait_for_text("You are not signed in", "signed-out")
    ui.page.evaluate("localStorage.setItem('prefect-password', btoa('anna:another'))")
    ui.page.reload()
    ui.wait_for_text("You are not signed in", "wrong")
    ui.page.get_by_role("link", name="the Prefect UI").click()
    ui.page.wait_for_url("**/login**")


def test_signed_in_other_files_and_jobs_are_not_there(
    context: BrowserContext, parked: WaitingJob, tmp_path: Path
) -> None:
    ui = signed_in(context, parked, tmp_path)
    other = parked.job.translate(str.maketrans("0123456789", "1234567890"))
    paths = [
        f"{parked.job}/step-2/release-report.json", f"{parked.job}/step-9/release-report.html", f"{parked.job}/job.log",
        f"{parked.job}/step-2/{quote('../../import/batch-0.ndjson', safe='')}", f"{other}/release-report.html",
        f"{parked.job}/step-2/files.csv", quote("../../../etc/passwd", safe=""),
    ]  # fmt: skip
    for number, path in enumerate(paths):
        ui.page.goto(f"{parked.root}/sluice/report/{path}")
        ui.wait_for_text("There is no such release report", f"none-{number}")


def test_a_page_of_another_origin_in_the_same_browser_reads_nothing(
    context: BrowserContext, parked: WaitingJob, tmp_path: Path
) -> None:
    page = f"""<!DOCTYPE html><body><script>
    async function tried() {{
      const found = [], guess = {{Authorization: "Basic eDp5"}};
      for (const options of [{{}}, {{credentials: "include"}}, {{headers: guess}}, {{mode: "no-cors"}}])
        found.push(await fetch("{parked.address}", options).then((a) => a.type + a.status, () => "refused"));
      return found;
    }}
    </script><iframe src="{parked.address}"></iframe></body>"""

    class Evil(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = HTTPServer(("127.0.0.1", 0), Evil)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        signed_in(context, parked, tmp_path)
        foreign = context.new_page()
        foreign.goto(f"http://127.0.0.1:{server.server_port}/")
        tried = foreign.evaluate("tried()")
        assert tried[:3] == ["refused"] * 3
        assert tried[3] in {"opaque0", "refused"}
        (frame,) = [frame for frame in foreign.frames if frame.parent_frame]
        assert "Do not release" not in frame.content()
        (opener,) = [foreign.evaluate(f"(window.opened = window.open('{parked.address}')) !== null")]
        assert opener
        foreign.wait_for_timeout(1000)
        assert foreign.evaluate("(() => { try { return opened.document.title } catch (e) { return e.name } })()") in {
            "SecurityError", "",
        }  # fmt: skip
    finally:
        server.shutdown()
        server.server_close()
