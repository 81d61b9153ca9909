"""Release reports in the Prefect UI: access to each page, over real HTTP (document 5 §3)."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from deployments.sandbox.common.serve import serve_in_thread
from flows.engine.server.auth import ReportPages
from flows.engine.server.proof import basic
from tasks.release_report.page import files

SECRET = "sluice:" + "x" * 43
JOB = "0190cafe-0000-7000-8000-000000000001"
PAGE = "<!DOCTYPE html><title>Release report</title><p>mother's maiden name"
KEY = {"Authorization": f"Basic {basic(SECRET)}"}
REPORT = f"/sluice/report/{JOB}/step-3/release-report.html"
END = f"/sluice/report/{JOB}/release-report.html"


async def rest(request: Any) -> PlainTextResponse:
    return PlainTextResponse("the UI")


def served_in(directory: Path) -> ASGIApp:
    paths = [Route("/{path:path}", rest, methods=["GET", "POST", "OPTIONS"])]
    return ReportPages(Starlette(routes=paths), directory, SECRET)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a jobs directory with reports and other files of a job."""
    place = tmp_path_factory.mktemp("place")
    jobs = place / "jobs"
    for step in (None, 3):
        write(files.page(jobs / JOB, step), f"{PAGE} {step}")
    for name in (
        "release-report.json",
        "release-report.recipient.html",
        "files.csv",
        "other.html",
        "release-report.htm",
    ):
        write(jobs / JOB / "report/step-3" / name, "secret")
    write(jobs / JOB / "release-report.html", "secret")
    write(jobs / JOB / "import/release-report.html", "secret")
    write(place / "jobs-of-another" / JOB.replace("0001", "0002") / "report/release-report.html", "secret")
    return jobs


def write(path: Path, text: str, *, mode: int = 0o600) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


@pytest.fixture(scope="module")
def url(jobs: Path) -> Iterator[str]:
    with serve_in_thread(served_in(jobs)) as served:
        yield served.url


def send_request(url: str, headers: dict[str, str] | None = None, method: str = "GET") -> httpx.Response:
    return httpx.request(method, url, headers=headers, trust_env=False, timeout=20)


@pytest.mark.parametrize(("path", "step"), [(REPORT, 3), (END, None)])
def test_whoever_is_signed_in_gets_the_page_and_nothing_of_it_runs_or_stays(
    url: str, path: str, step: int | None
) -> None:
    page, head = send_request(url + path, KEY), send_request(url + path, KEY, "HEAD")
    assert (page.status_code, page.text) == (200, f"{PAGE} {step}")
    assert (head.status_code, head.text) == (200, "")
    for answer in (page, head):
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = answer.headers["content-security-policy"].split("; ")
        assert policy[:3] == ["default-src 'none'", "style-src 'unsafe-inline'", "img-src data:"]
        assert "frame-ancestors 'none'" in policy
        are_private(answer)


def are_private(answer: httpx.Response) -> None:
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert "set-cookie" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "credentials",
    [None, "", "Basic", "Bearer x", f"Bearer {basic(SECRET)}", f"Basic {basic('sluice:wrong')}", SECRET,
     f"basic {basic(SECRET)}", f"Basic {basic(SECRET)}="],
)  # fmt: skip
@pytest.mark.parametrize(
    "path", [REPORT, f"/sluice/report/{JOB.replace('1', '9')}/release-report.html", "/sluice/report/"]
)
def test_whoever_is_not_gets_a_page_that_says_nothing_of_any_job(url: str, path: str, credentials: str | None) -> None:
    answer = send_request(url + path, None if credentials is None else {"Authorization": credentials})
    assert answer.status_code == 401
    assert "www-authenticate" not in answer.headers  # a browser would send what it asks for to the API, too
    assert "maiden" not in answer.text
    assert JOB not in answer.text
    assert "You are not signed in" in answer.text
    assert answer.text == send_request(f"{url}/sluice/report/x").text
    are_private(answer)


def test_the_page_that_opens_a_report_runs_its_own_script_only(url: str) -> None:
    answer = send_request(url + REPORT)
    (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert answer.headers["content-security-policy"] == (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1", "http://127.0.0.1:1", "http://["]
)
@pytest.mark.parametrize("headers", [KEY, {}], ids=["signed in", "not"])
def test_a_page_of_another_origin_gets_nothing(url: str, origin: str, headers: dict[str, str]) -> None:
    for method in ("GET", "HEAD", "POST", "OPTIONS"):
        answer = send_request(url + REPORT, headers | {"Origin": origin}, method)
        assert answer.status_code in {403, 405}
        assert "DOCTYPE" not in answer.text
        are_private(answer)


def test_the_origin_of_the_ui_is_none_also_where_tls_ends_before_the_server(url: str) -> None:
    for host, origin in ((url.removeprefix("http://"), url), ("ui.example", "https://ui.example")):
        assert send_request(url + REPORT, KEY | {"Host": host, "Origin": origin}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_it_is_only_read(url: str, method: str) -> None:
    assert send_request(url + REPORT, KEY, method).status_code == 405


OTHERS = [
    "latest",
    "elsewhere",
    "%2e%2e",
    JOB.upper(),
    f"..%2f{JOB}",
    JOB.replace("0001", "0002"),
]
OF_THE_JOB = [
    "", "step-3", "step-3/", "step-2/release-report.html", "step-3/release-report.json", "step-3/files.csv",
    "step-3/release-report.recipient.html", "step-3/other.html", "step-3/release-report.htm", "/release-report.html",
    "step-3/release-report.html/", "step-3/release-report.html%00", "step-3/release-report.html%0A",
    "step-03/release-report.html", "step-%d9%a3/release-report.html", "step-/release-report.html",
    "step-0/release-report.html", "report/release-report.html", "report/step-3/release-report.html",
    "%2e%2e/release-report.html", "..%2f../elsewhere/release-report.html", "import/release-report.html",
    "step-3/..%2frelease-report.html",
]  # fmt: skip
NONE = [
    *(f"{JOB}/{path}" for path in OF_THE_JOB), *(f"{job}/release-report.html" for job in OTHERS), "", JOB,
    "../../etc/passwd", "%2fetc%2fpasswd",
]  # fmt: skip
"""Other files of a job, other spellings, other jobs directories."""


@pytest.mark.parametrize("path", NONE)
def test_nothing_but_the_page_of_a_job_of_this_directory_is_there(url: str, path: str) -> None:
    answer = raw(url, f"/sluice/report/{path}")
    assert b"secret" not in answer
    assert b"maiden" not in answer
    assert answer.split()[1] == b"404"
    assert b"no-store" in answer


def raw(url: str, path: str) -> bytes:
    """Return the answer to a path that no client normalizes first."""
    host, _, port = url.removeprefix("http://").partition(":")
    headers = [f"Host: {host}:{port}", "Connection: close", f"Authorization: {KEY['Authorization']}"]
    request = "\r\n".join([f"GET {path} HTTP/1.1", *headers, "", ""])
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(request.encode())
        found = b""
        while data := connection.recv(1 << 16):
            found += data
    return found


@pytest.mark.parametrize(
    "path", ["/", "/sluice/reports", "/sluice/report", "/runs", f"//sluice/report/{JOB}/release-report.html"]
)
def test_everything_else_is_passed_on(url: str, path: str) -> None:
    assert b"the UI" in raw(url, path)


def test_pages_that_were_copied_for_people_without_a_shell_are_shown_as_well(tmp_path: Path) -> None:
    for step in (None, 3):
        write(tmp_path / files.name_of_copy(JOB, step), f"{PAGE} {step}", mode=0o640)
    with serve_in_thread(served_in(tmp_path)) as served:
        assert send_request(served.url + REPORT, KEY).text == f"{PAGE} 3"
        assert send_request(served.url + END, KEY).text == f"{PAGE} None"
        assert send_request(f"{served.url}/sluice/report/{JOB}/step-4/release-report.html", KEY).status_code == 404
