"""Choice of the Prefect API, and the embedded server's life cycle (4-product.md §6, architecture.md)."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from flows.engine.api_address import configured_api
from flows.engine.server.start import EmbeddedServer
from tests.conftest import ROOT, kill, seed, wait_until
from tests.peers.server import Reply, loopback

USER = """
import sys, time
from pathlib import Path
from flows.engine.server.start import EmbeddedServer
with EmbeddedServer(Path(sys.argv[1])) as server:
    print(server.address().url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def jobs_dir(tmp_path: Path, migrated_database: Path) -> Path:
    seed(tmp_path / "jobs", migrated_database)
    return tmp_path / "jobs"


def user(jobs_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(jobs_dir)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def server_pid(jobs_dir: Path) -> int:
    return int(json.loads((jobs_dir / ".prefect/server.json").read_text())["pid"])


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.e2e
def test_it_is_shared_by_those_that_come_while_it_runs_and_ends_with_the_last(jobs_dir):
    first = user(jobs_dir)
    assert first.stdout
    url = first.stdout.readline()
    pid = server_pid(jobs_dir)
    second = user(jobs_dir)
    assert second.stdout
    assert second.stdout.readline() == url
    first.communicate()
    assert not gone(pid)
    second.communicate()
    wait_until(lambda: gone(pid), 60)
    assert EmbeddedServer(jobs_dir).running() is None


@pytest.mark.e2e
def test_after_kill_9_of_the_command_no_server_process_is_left(jobs_dir):
    process = user(jobs_dir)
    assert process.stdout
    process.stdout.readline()
    pid = server_pid(jobs_dir)
    kill(process.pid)
    process.communicate()
    wait_until(lambda: gone(pid), 60)


@pytest.mark.e2e
def test_after_kill_9_of_the_server_the_next_command_starts_another(jobs_dir):
    with EmbeddedServer(jobs_dir) as server:
        server.address()
        kill(server_pid(jobs_dir))
    with EmbeddedServer(jobs_dir) as server:
        assert server.address().url
        assert server.running() is not None


@pytest.mark.e2e
def test_everything_it_leaves_is_private(jobs_dir):
    with EmbeddedServer(jobs_dir) as server:
        server.address()
        for path in (jobs_dir / ".prefect").rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # the server is at work
                assert path.stat().st_mode & 0o077 == 0, path


def test_the_users_api_is_taken_from_the_environment():
    address = configured_api({"PREFECT_API_URL": "http://prefect.example/api/", "PREFECT_API_KEY": "k"})
    assert address is not None
    assert address.url == "http://prefect.example/api"
    assert address.headers == {"Authorization": "Bearer k"}
    assert "Bearer" not in repr(address)


def test_the_users_api_is_taken_from_the_active_profile(tmp_path):
    (tmp_path / "profiles.toml").write_text(
        'active = "site"\n[profiles.site]\nPREFECT_API_URL = "http://site.example/api"\n'
        'PREFECT_API_AUTH_STRING = "admin:pass"\n[profiles.other]\nPREFECT_API_URL = "http://other.example/api"\n'
    )
    address = configured_api({"PREFECT_HOME": str(tmp_path)})
    assert address is not None
    assert address.url == "http://site.example/api"
    assert address.headers["Authorization"].startswith("Basic ")
    other = configured_api({"PREFECT_HOME": str(tmp_path), "PREFECT_PROFILE": "other"})
    assert other is not None
    assert other.url == "http://other.example/api"


def test_without_any_there_is_none(tmp_path):
    assert configured_api({"PREFECT_HOME": str(tmp_path)}) is None


@pytest.mark.e2e
def test_it_asks_nobody_outside_for_its_lists(jobs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with loopback([Reply(500)]) as outside:
        for scheme in ("HTTP", "HTTPS", "ALL"):
            monkeypatch.setenv(f"{scheme}_PROXY", outside.url)
        with EmbeddedServer(jobs_dir) as server:
            for view in ("aggregate-worker-metadata", "demo-flows"):
                asked = f"{server.address().url}/collections/views/{view}"
                key = dict(server.address().headers)
                answer = httpx.get(asked, headers=key, trust_env=False, timeout=60)
                if view == "aggregate-worker-metadata":  # the one that commands and workers need
                    assert "process" in answer.json()["prefect"]
        assert outside.connections == 0


def test_it_offers_one_ui_whose_pages_call_nobody_else(prefect_api: str) -> None:
    settings = httpx.get(f"{prefect_api.removesuffix('/api')}/ui-settings", trust_env=False, timeout=60).json()
    assert settings["available_uis"] == ["v1"]


CUT_OFF = """
import gc, sqlite3, sys, threading, time
from flows.engine.server.child import collect_apart

def connected():
    return sqlite3.connect(sys.argv[1], isolation_level=None, check_same_thread=False, timeout=3)

holder, busy = connected(), connected()
holder.execute("create table t (x)")

class Request:
    pass

def cut_off():
    request = Request()
    request.me = request
    request.rows = busy.execute("with recursive n(i) as (select 1 union all select i + 1 from n) select i from n")

if sys.argv[2] == "apart":
    collect_apart(0.1)
gc.collect()  # whatever was imported, the next collection is a while away
cut_off()
holder.execute("begin immediate")

def wait_for_the_database():
    try:
        busy.execute("insert into t values (1)")
    except sqlite3.OperationalError:
        pass

thread = threading.Thread(target=wait_for_the_database)
thread.start()
time.sleep(0.3)
longest, last, kept = 0.0, time.monotonic(), []
while thread.is_alive():
    kept.append([[] for _ in range(100)])  # what makes Python collect
    if len(kept) > 50:
        kept.clear()
    time.sleep(0.001)
    now = time.monotonic()
    longest, last = max(longest, now - last), now
print(longest)
"""
"""A request that is cut off with a cursor, and a thread that waits for the database on its connection: how long the
main thread was held up at most."""


@pytest.mark.slow
def test_what_a_request_that_is_cut_off_leaves_holds_nobody_up(tmp_path: Path) -> None:
    def held_up(how: str) -> float:
        ran = subprocess.run(
            [sys.executable, "-c", CUT_OFF, str(tmp_path / how), how], cwd=ROOT, capture_output=True, text=True,
            check=True, timeout=60,
        )  # fmt: skip
        return float(ran.stdout)

    assert held_up("as usual") > 1.5  # else the test shows nothing
    assert held_up("apart") < 1.5
