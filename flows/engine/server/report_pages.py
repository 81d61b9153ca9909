"""Serve the pages of release reports next to the Prefect UI, to users signed in there (document 5 §3).

The UI keeps the login in its local storage and sends it with each call of the API. A link does not send it, and a
cookie would go to every port of the host. So a request without the login is answered 401 with a page whose script takes
the login from there, asks for the same address with it, and shows the answer. That page allows no other script,
so the report in it runs none. Only requests that carry the login get a report.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from flows.engine.server.auth import ALONE, PRIVATE, is_signed_in, refused, script_page
from flows.engine.server.proof import REPORTS_PATH
from tasks.shared.files.private_file import NotPrivateError, read_private

_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PAGE: Final = re.compile(rf"{REPORTS_PATH}(?P<job>{_UUID})/(?:step-(?P<step>[1-9][0-9]?)/)?release-report\.html")
_LARGEST: Final = 1 << 20
"""Bytes of a page; they have 150 kB at most."""

_REPORT_POLICY: Final = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; {ALONE}"

_REPORT_SCRIPT: Final = """
const words = document.getElementById("words");
const key = localStorage.getItem("prefect-password");
const refused = () => { words.hidden = true; document.getElementById("refused").hidden = false; };
const show = async (answer) => {
  if (answer.status === 401) return refused();
  if (!answer.ok) return words.textContent = "There is no such release report (any more). Open it from the job's form.";
  const page = await answer.text();
  document.open();
  document.write(page);
  document.close();
};
if (!key) refused();
else fetch(location.pathname, {headers: {Authorization: "Basic " + key}, cache: "no-store"}).then(show, refused);
"""

_REPORT_BODY: Final = """<p id="words">Opening the release report …</p>
<div id="refused" hidden><p>You are not signed in.</p><p>Sign in to <a href="/">the Prefect UI</a>, then reload this
page. The server of a jobs directory prints a link that signs you in: <code>sluice server status</code></p></div>"""


class ReportPages:
    """An ASGI application that serves release reports and passes every other request to ``app``.

    ``directory`` is a jobs directory, or one to which ``report.copy_to`` copies the pages.
    """

    def __init__(self, app: ASGIApp, directory: Path, auth_string: str) -> None:
        self._app = app
        self._directory = directory.resolve()
        self._auth_string = auth_string

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a release report, or pass it on."""
        app = self._app
        if scope["type"] == "http" and scope["path"].startswith(REPORTS_PATH):
            app = await run_in_threadpool(self._answer, scope)
        await app(scope, receive, send)

    def _answer(self, scope: Scope) -> Response:
        headers = Headers(scope=scope)
        if scope["method"] not in {"GET", "HEAD"}:
            return refused(405, "a release report can only be read")
        host = headers.get("host", "").lower()
        # Not urlsplit: it raises for some texts, and the server would log a traceback for anybody.
        if any(origin.lower().partition("://")[2] != host for origin in headers.getlist("origin")):
            return refused(403, "pages of other origins have no access")
        if not is_signed_in(headers, self._auth_string):
            return script_page("Release report", _REPORT_BODY, _REPORT_SCRIPT, status=401, also="img-src data:; ")
        page = self._page(scope["path"])
        if page is None:
            return refused(404, "no such release report")
        return HTMLResponse(page, headers=PRIVATE | {"content-security-policy": _REPORT_POLICY})

    def _page(self, path: str) -> bytes | None:
        """Return the page with this path; ``None`` if it is missing or not private to the directory's owner."""
        from tasks.release_report.page import files  # the server starts without the templates of the page

        found = _PAGE.fullmatch(path)
        if found is None:
            return None
        job, step = found["job"], int(found["step"]) if found["step"] else None
        for place in (files.page(self._directory / job, step), self._directory / files.name_of_copy(job, step)):
            try:
                page = read_private(place, most=_LARGEST, below=self._directory)
            except NotPrivateError:
                continue
            if page is not None:
                return page
        return None
