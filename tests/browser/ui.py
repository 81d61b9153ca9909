"""The Prefect UI as a person uses it: pages opened, buttons pressed, forms filled in, texts read.

The browser reaches the Prefect server and nothing else, as in a hospital without internet. What it asked for beyond
that, and every text that was read, is kept for the tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Locator, Page, Response, Route, WebSocket, expect

JOB = "The page of the job"
"""What the title of the job's page begins with; the other artifact is the short form of the release report."""

REASON = "Reason, if the release report has stops"
"""The field of the form of a wait for the reason of a release."""

PATIENCE = 90_000
"""Milliseconds for what another process does on a busy machine."""


@dataclass
class Ui:
    """One tab of a browser on the UI at ``root``."""

    page: Page
    root: str
    pictures: Path
    elsewhere: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)
        self.page.route("**/*", self._only_the_server)
        self.page.on("websocket", self._websocket)

    def _is_the_server(self, url: str) -> bool:
        return urlsplit(url).netloc == urlsplit(self.root).netloc or url.startswith(("data:", "blob:"))

    def _only_the_server(self, route: Route) -> None:
        if self._is_the_server(route.request.url):
            route.continue_()
        else:
            self.elsewhere.append(route.request.url)
            route.abort()

    def _websocket(self, socket: WebSocket) -> None:
        if not self._is_the_server(socket.url):
            self.elsewhere.append(socket.url)

    def read(self, picture: str) -> str:
        """Return the text that the page shows now, and save a picture of it."""
        text = self.page.locator("body").inner_text()
        self.texts.append(text)
        self.page.screenshot(path=self.pictures / f"{picture}.png", animations="disabled")
        return text

    def wait_for_text(self, text: str, picture: str) -> str:
        """Wait until the page shows ``text``; everything that it shows then."""
        self.page.get_by_text(text).first.wait_for()
        return self.read(picture)

    def sign_in(self, link: str) -> None:
        """Open the link that ``server start`` prints; the UI's first page."""
        self.page.goto(link)
        self.page.wait_for_url(lambda url: not url.startswith((f"{self.root}/sluice", f"{self.root}/login")))

    def open_deployment(self, name: str) -> None:
        """From the list of deployments to the page of one."""
        self.page.goto(f"{self.root}/deployments")
        self.page.get_by_role("link", name=name, exact=True).first.click()
        self.page.get_by_role("button", name="Run", exact=True).wait_for()

    def custom_run(self, *, named: str | None = None, **values: str | Path) -> str:
        """Run → Custom run on the deployment's page: fill the form in and submit it; the id of the run."""

        def fill_in() -> None:
            self.open_form()
            if named is not None:
                self.page.locator(".flow-run-name-input input").fill(named)
            for name, value in values.items():
                self.parameter(name).locator("textarea").fill(str(value))
            self.read("form")
            self.page.get_by_role("button", name="Submit").click()

        deployment = self.page.url
        answer = self._until_taken("/create_flow_run", deployment, fill_in)
        run = str(answer.json()["id"])
        self.page.wait_for_url("**tab=Runs")
        self.read("submitted")
        self.open_run(run)
        return run

    def open_form(self) -> None:
        """Run → Custom run on the deployment's page."""
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.page.get_by_role("button", name="Custom run").click()
        self.page.get_by_text("Validate parameters").wait_for()

    def _until_taken(self, path: str, where: str, do: Callable[[], None]) -> Response:
        """Act on a page; start again while the server reports a busy database, as users do."""
        for _ in range(20):
            with self.page.expect_response(
                lambda answer: answer.request.method == "POST" and answer.url.endswith(path)
            ) as answer:
                do()
            if answer.value.status != 503:
                break
            self.page.goto(where)
        assert answer.value.ok, answer.value.status
        return answer.value

    def parameter(self, name: str) -> Locator:
        """Return the field of a parameter in the form."""
        label = self.page.locator(".schema-form-property__label", has_text=re.compile(rf"^{name}( \(Optional\))?$"))
        return self.page.locator(".schema-form-property", has=label)

    def open_run(self, run: str, tab: str | None = None) -> None:
        """The page of a run, at one of its tabs."""
        self.page.goto(f"{self.root}/runs/flow-run/{run}")
        self.page.locator("li.p-tab#logs").wait_for()
        if tab is not None:
            self.page.locator(f"li.p-tab#{tab}").click()

    def see_state(self, name: str) -> None:
        """Wait until the page of a run shows this state."""
        expect(self.page.locator(".page-heading .state-badge")).to_have_text(name, timeout=PATIENCE)

    def task_runs(self, run: str) -> dict[str, str]:
        """Return the task runs of a run by name, and their states."""
        self.open_run(run, "task-runs")
        items = self.page.locator(".task-run-list-item")
        items.first.wait_for()
        self.read("task-runs")
        return {lines[0]: lines[1] for lines in (item.splitlines() for item in items.all_inner_texts())}

    def title(self, run: str) -> str:
        """Return the title of the page of the job among the artifacts of a run."""
        self.open_run(run, "artifacts")
        cards = self.page.locator(".artifact-card", has_text=JOB)
        cards.first.wait_for()
        self.read("artifacts")
        (text,) = cards.all_inner_texts()
        return text.splitlines()[-1]

    def open_page(self, run: str, *, until: str) -> str:
        """Open the page of a job and return its text once it shows ``until``."""
        self.open_run(run, "artifacts")
        self.page.locator(".artifact-card", has_text=JOB).first.click()
        self.page.get_by_text("Show raw data").wait_for()
        return self.wait_for_text(until, "page")

    def logs(self, run: str, *, until: str) -> str:
        """Return the Logs tab of a run, when it shows ``until``."""
        self.open_run(run, "logs")
        self.page.get_by_text(until).first.scroll_into_view_if_needed()
        return self.wait_for_text(until, "logs")

    def tables(self) -> list[list[list[str]]]:
        """Return the tables of the page, row by row; the first row is the header."""
        return [
            [row.locator("th, td").all_inner_texts() for row in table.locator("tr").all()]
            for table in self.page.locator("table").all()
        ]

    def resume_form(self) -> Locator:
        """Resume on the page of a run: the form of its wait."""
        self.page.get_by_role("button", name="Resume").click()
        form = self.page.locator(".p-modal")
        form.locator(".schema-form-property__label").first.wait_for()
        return form

    def choose(self, decision: str) -> None:
        """Choose in the form of a wait: the arrow opens the list."""
        self.page.locator(".p-modal .p-select-button__icon").click()
        self.page.locator(".p-select-option", has_text=decision).click()

    def resume(self, decision: str, *, by: str, comment: str, despite: str = "") -> str:
        """Fill in and submit the wait form on the page of a run; return the form's text."""
        said = ""

        def decide() -> None:
            nonlocal said
            form = self.resume_form()
            self.choose(decision)
            self.parameter("Name").locator("textarea").fill(by)
            self.parameter("Comment").locator("textarea").fill(comment)
            self.parameter(REASON).locator("textarea").fill(despite)
            said = form.inner_text()
            self.read("wait")
            form.get_by_role("button", name="Submit").click()

        self._until_taken("/resume", self.page.url, decide)
        return said

    def cancel(self) -> None:
        """Cancel, on the page of a run."""
        self._confirmed("Cancel", "Confirm")

    def retry(self) -> None:
        """Retry, on the page of a run."""
        self._confirmed("Retry", "Retry")

    def _confirmed(self, button: str, confirmation: str) -> None:
        def press() -> None:
            self.page.get_by_role("button", name=button).click()
            self.page.locator(".p-modal").get_by_role("button", name=confirmation).click()

        self._until_taken("/set_state", self.page.url, press)
