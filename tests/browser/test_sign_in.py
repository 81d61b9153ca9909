"""The UI of the local Prefect server is opened by one link and by nothing else (4-product.md §6; issue 13, 1)."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flows.engine.api_address import ApiAddress
from flows.engine.server.proof import sign_in_link

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: see the extra browser")

from tests.browser.conftest import link
from tests.browser.ui import Ui
from tests.peers.server import Reply, loopback

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(400)]


def tab(browser: Browser, api: str, pictures: Path) -> Ui:
    return Ui(browser.new_context(viewport={"width": 1400, "height": 900}).new_page(), ApiAddress(api).ui, pictures)


def test_the_link_opens_the_ui_signed_in_and_leaves_no_secret_in_the_address(
    browser: Browser, prefect_api: str, tmp_path: Path
) -> None:
    ui = tab(browser, prefect_api, tmp_path)
    ui.sign_in(link(prefect_api))
    ui.wait_for_text("Dashboard", "signed-in")
    secret = base64.b64encode(os.environ["PREFECT_API_AUTH_STRING"].encode()).decode()
    assert secret not in ui.page.url
    assert ui.page.evaluate("localStorage.getItem('prefect-password')") == secret
    assert ui.page.context.cookies() == []
    for page in ("runs", "flows", "deployments", "work-pools", "events", "automations", "concurrency-limits"):
        with ui.page.expect_response(lambda answer: "/api/" in answer.url) as first:
            ui.page.goto(f"{ui.root}/{page}")
        assert first.value.status == 200, page
        ui.page.wait_for_load_state("networkidle")
        assert "Unauthorized" not in ui.read(page)
        assert ui.page.url.startswith(f"{ui.root}/{page}")
    assert ui.elsewhere == []


def test_without_the_link_a_browser_sees_nothing_but_the_question_for_the_password(
    browser: Browser, prefect_api: str, tmp_path: Path
) -> None:
    ui = tab(browser, prefect_api, tmp_path)
    ui.page.goto(f"{ui.root}/runs")
    ui.page.wait_for_url("**/login**")
    ui.page.locator("input[type=password]").wait_for()
    ui.read("login")


def test_a_link_with_another_secret_says_so_and_signs_nobody_in(
    browser: Browser, prefect_api: str, tmp_path: Path
) -> None:
    ui = tab(browser, prefect_api, tmp_path)
    ui.page.goto(sign_in_link(ui.root, "sluice:" + "x" * 43))
    ui.wait_for_text("does not open the server", "refused")
    assert ui.page.evaluate("localStorage.getItem('prefect-password')") is None


def test_a_page_of_another_origin_in_the_same_browser_reads_and_changes_nothing(
    browser: Browser, prefect_api: str, tmp_path: Path
) -> None:
    """The person is signed in, and opens a page that tries what pages can: fetches, forms, a frame."""
    root = ApiAddress(prefect_api).ui
    page = f"""<!DOCTYPE html><body><script>
    async function tried() {{
      const found = [];
      for (const options of [{{}}, {{method: "POST", body: "{{}}", headers: {{"Content-Type": "text/plain"}}}},
                             {{method: "POST", body: "{{}}", mode: "no-cors"}}, {{mode: "no-cors"}}])
        found.push(await fetch("{prefect_api}/admin/version", options).then((a) => a.type + a.status, () => "refused"));
      return found;
    }}
    </script><iframe id="inside" src="{root}/runs"></iframe>
    <form id="wipe" method="post" enctype="text/plain" action="{prefect_api}/admin/database/clear">
    <input name='{{"confirm": true, "x": "' value='"}}'></form></body>"""

    with loopback([Reply(200, page.encode(), {"Content-Type": "text/html"})]) as server:
        context = browser.new_context()
        own = Ui(context.new_page(), root, tmp_path)
        own.sign_in(link(prefect_api))
        foreign = context.new_page()
        foreign.goto(server.url)
        tried = foreign.evaluate("tried()")
        assert tried[:2] == ["refused", "refused"]  # nothing of the answer can be read
        assert set(tried[2:]) <= {"opaque0", "refused"}
        (frame,) = [frame for frame in foreign.frames if frame.parent_frame]
        assert "Dashboard" not in frame.content()
        with foreign.expect_response("**/database/clear") as wiped:
            foreign.evaluate("document.getElementById('wipe').submit()")
        assert wiped.value.status == 403
