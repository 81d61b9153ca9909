"""The HTTP import: document 3 §8, and the bad inputs of the issue."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from config import PipelineConfig
from tasks.http_import.importer import findings, run
from tasks.shared.errors import InputError, NetworkError, ServiceError, SluiceError, StalledError
from tasks.shared.files.data_directory import data_files
from tasks.shared.step import StepContext
from tests.peers import job
from tests.peers.lines import read_lines
from tests.peers.server import Loopback, Raw, Reply, SeenRequest, closed_port, loopback

PATIENT = b'{"resourceType":"Patient","id":"p1","value":1.50}\n'


def config(*urls: str, enabled: bool = True, stall_timeout: str = "PT1M") -> PipelineConfig:
    return PipelineConfig.model_validate(
        {
            "compression": {"enabled": enabled},
            "services": {"http_import": {"urls": list(urls), "stall_timeout": stall_timeout}},
            "retry": {"max_attempts": 3, "initial_backoff_ms": 0, "max_backoff_ms": 0},
        }
    )


def context(
    tmp_path: Path, *urls: str, named: str | None = None, enabled: bool = True, stall_timeout: str = "PT1M"
) -> StepContext:
    settings = config(*urls, enabled=enabled, stall_timeout=stall_timeout)
    return job.context(tmp_path / "job", "http_import", settings, position=0, input=named)


def imported(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: b"\n".join(read_lines(path)) + b"\n" for path in data_files(tmp_path / "job" / "import")}


def fails(kind: type[SluiceError], ctx: StepContext) -> SluiceError:
    with pytest.raises(kind) as caught:
        run(ctx)
    assert "CANARY" not in caught.value.render()
    left = [path.name for path in (ctx.job_dir / "import").iterdir()] if (ctx.job_dir / "import").exists() else []
    assert not [name for name in left if name.endswith(".part")]
    return caught.value


def by_path(**replies: Reply) -> Callable[[SeenRequest], Reply | Raw]:
    def answer(seen: SeenRequest) -> Reply:
        return replies.get(seen.target.partition("?")[0].lstrip("/").replace(".", "_"), Reply(404))

    return answer


def test_the_url_named_on_the_command_line_wins_over_the_configuration(tmp_path: Path) -> None:
    with loopback([Reply(200, PATIENT * 3)]) as server:
        ctx = context(tmp_path, "http://configured.invalid/x", named=f"{server.url}/Patient.ndjson?sig=CANARY")
        result = run(ctx)
    assert imported(tmp_path) == {"Patient.ndjson.zst": PATIENT * 3}
    assert (result.files, result.resources_in, result.resources_out, result.output) == (1, 3, 3, "import")
    assert result.bytes_in == len(PATIENT) * 3
    assert ctx.meter.snapshot().fraction == 1.0
    record = (ctx.job_dir / ".results" / "0-files.ndjson").read_text()
    assert "CANARY" not in record + str(result)


@pytest.mark.parametrize("enabled", [True, False])
def test_several_urls_are_imported(tmp_path: Path, enabled: bool) -> None:
    with loopback(by_path(a_ndjson=Reply(200, PATIENT), b=Reply(200, zstandard.compress(PATIENT * 2)))) as server:
        result = run(context(tmp_path, f"{server.url}/a.ndjson", f"{server.url}/b", enabled=enabled))
    assert (result.files, result.resources_out) == (2, 3)
    suffix = ".zst" if enabled else ""
    assert list(imported(tmp_path)) == [f"a.ndjson{suffix}", f"b.ndjson{suffix}"]


def test_no_credentials_are_sent(tmp_path: Path) -> None:
    with loopback([Reply(200, PATIENT)]) as server:
        run(context(tmp_path, f"{server.url}/a.ndjson"))
    assert server.seen[0].authorization is None
    assert "cookie" not in server.seen[0].headers
    assert "x-api-key" not in server.seen[0].headers


def test_the_name_is_the_last_path_segment_without_the_query(tmp_path: Path) -> None:
    with loopback([Reply(200, PATIENT)]) as server:
        run(context(tmp_path, f"{server.url}/a/Patient.ndjson?name=other.ndjson"))
    assert [path.name for path in data_files(tmp_path / "job" / "import")] == ["Patient.ndjson.zst"]


def test_two_urls_with_the_same_last_segment_do_not_overwrite_each_other(tmp_path: Path) -> None:
    def answer(seen: SeenRequest) -> Reply:
        return Reply(200, PATIENT * (1 if "one" in seen.target else 2))

    with loopback(answer) as server:
        urls = [f"{server.url}/one/x.ndjson", f"{server.url}/two/x.ndjson", f"{server.url}/two/x-2.ndjson"]
        result = run(context(tmp_path, *urls))
    assert imported(tmp_path) == {"x.ndjson.zst": PATIENT, "x-2.ndjson.zst": PATIENT * 2, "x-3.ndjson.zst": PATIENT * 2}
    assert result.resources_out == 5


# Findings


def references(found: list[SluiceError]) -> list[str]:
    return [finding.reference for finding in found]


def test_a_reachable_url_has_no_findings() -> None:
    with loopback([Reply(200, PATIENT)]) as server:
        assert findings(config(), f"{server.url}/x.ndjson") == []


def test_a_host_nobody_answers_at_is_a_transient_finding_once_per_host() -> None:
    dead = f"http://127.0.0.1:{closed_port()}"
    found = findings(config(f"{dead}/a?CANARY", f"{dead}/b"))
    assert len(found) == 1
    assert isinstance(found[0], NetworkError)
    assert found[0].exit_code == 3
    assert "CANARY" not in found[0].render()


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_url_with_nothing_behind_it_is_an_input_finding(status: int) -> None:
    with loopback([Reply(status)]) as server:
        found = findings(config(), f"{server.url}/x.ndjson?CANARY")
    assert references(found) == ["url-refused"]
    assert found[0].exit_code == 2
    assert "CANARY" not in found[0].render()


def test_a_file_that_the_job_has_is_not_asked_for_again_though_its_url_has_expired(tmp_path: Path) -> None:
    replies = {"/a.ndjson": Reply(200, PATIENT), "/b.ndjson": Reply(200, PATIENT)}
    with loopback(lambda seen: replies[seen.target]) as server:
        urls = (f"{server.url}/a.ndjson", f"{server.url}/b.ndjson")
        run(context(tmp_path, urls[0]))
        replies["/a.ndjson"] = Reply(403)
        assert references(findings(config(*urls))) == ["url-refused"]
        assert findings(config(*urls), job_dir=tmp_path / "job") == []
        run(context(tmp_path, *urls))
    assert set(imported(tmp_path)) == {"a.ndjson.zst", "b.ndjson.zst"}


@pytest.mark.parametrize("status", [405, 500, 503])
def test_any_other_answer_counts_as_reachable(status: int) -> None:
    with loopback([Reply(status)]) as server:
        assert findings(config(), f"{server.url}/x.ndjson") == []


def test_a_url_that_is_good_for_one_use_survives_the_check(tmp_path: Path) -> None:
    """Any GET whose body goes out uses it up; HEAD does not."""
    uses: list[str] = []

    def answer(seen: SeenRequest) -> Reply:
        if seen.method == "HEAD":
            return Reply(200, PATIENT)
        uses.append(seen.target)
        return Reply(200, PATIENT) if len(uses) == 1 else Reply(410)

    with loopback(answer) as server:
        ctx = context(tmp_path, f"{server.url}/x.ndjson")
        assert findings(ctx.config) == []
        assert findings(ctx.config) == []
        assert uses == []
        assert run(ctx).files == 1


def test_no_body_is_read_where_head_is_refused() -> None:
    """The server ignores the range and sends 100 MB: it gets rid of what fits into the buffers of the connection."""
    size, sent = 100_000_000, 0

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            nonlocal sent
            while not sent:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    while request := connection.recv(65536):
                        if request.startswith(b"HEAD"):
                            connection.sendall(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
                            continue
                        assert b"Range: bytes=0-0" in request
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
                        while sent < size:
                            sent += connection.send(bytes(65536))

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        sizes: dict[str, int] = {}
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.ndjson"
        assert findings(config(url), sizes=sizes) == []
        server.join(timeout=30)
        assert not server.is_alive()
    assert sizes == {url: size}
    assert sent < size / 2


def test_a_download_stalls_after_the_configured_time(tmp_path: Path) -> None:
    def answer(_: SeenRequest) -> Raw:
        return Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + PATIENT, then="stall")

    with loopback(answer) as server:
        ctx = context(tmp_path, f"{server.url}/x.ndjson", stall_timeout="500ms")
        assert fails(StalledError, ctx).reference == "transfer-stalled"


@pytest.mark.parametrize(
    ("url", "reference"),
    [
        ("ftp://host.example/x", "url-invalid"),
        ("http:///x", "url-invalid"),
        ("http://host.example:abc/x", "url-invalid"),
        ("http://[::1/x", "url-invalid"),
        ("http://user:CANARY@host.example/x", "url-credentials"),
    ],
)
def test_an_unusable_url_is_an_input_error_that_hides_secrets(tmp_path: Path, url: str, reference: str) -> None:
    found = findings(config(), url)
    assert references(found) == [reference]
    assert found[0].exit_code == 2
    assert "CANARY" not in found[0].render()
    assert fails(InputError, context(tmp_path, named=url)).reference == reference


def test_all_findings_of_all_urls_come_together() -> None:
    urls = ["http://a.invalid/core.ndjson", "http://b.invalid/CORE.ndjson", "http://c.invalid/x", "http://c.invalid/x"]
    assert references(findings(config(*urls))) == ["url-duplicate", "name-clash"]


def test_no_url_at_all_is_an_input_error(tmp_path: Path) -> None:
    assert fails(InputError, context(tmp_path)).reference == "input-missing"


# Bad answers


def test_a_redirect_to_another_host_is_an_error(tmp_path: Path) -> None:
    with loopback([Reply(200, PATIENT)]) as other:
        elsewhere = {"Location": f"{other.url}/x.ndjson?CANARY"}
        with loopback([Reply(302, headers=elsewhere)]) as server:
            error = fails(ServiceError, context(tmp_path, f"{server.url}/x.ndjson"))
    assert "redirect" in error.reference
    assert other.seen == []


def test_a_redirect_within_the_host_is_followed(tmp_path: Path) -> None:
    def answer(seen: SeenRequest) -> Reply:
        return Reply(200, PATIENT) if seen.target == "/real" else Reply(302, headers={"Location": "/real"})

    with loopback(answer) as server:
        run(context(tmp_path, f"{server.url}/x.ndjson"))
    assert list(imported(tmp_path)) == ["x.ndjson.zst"]


def refused_second(server: Loopback) -> list[str]:
    return [f"{server.url}/a.ndjson", f"{server.url}/b.ndjson"]


def test_finished_files_are_not_fetched_again_and_still_count(tmp_path: Path) -> None:
    broken = True

    def answer(seen: SeenRequest) -> Reply:
        return Reply(404) if broken and seen.target == "/b.ndjson" else Reply(200, PATIENT)

    with loopback(answer) as server:
        run(context(tmp_path, f"{server.url}/a.ndjson"))
        fails(ServiceError, context(tmp_path, *refused_second(server)))
        broken = False
        server.seen.clear()
        result = run(context(tmp_path, *refused_second(server)))
    assert [seen.target for seen in server.seen] == ["/b.ndjson"]
    assert (result.files, result.resources_in) == (2, 2)
    assert list(imported(tmp_path)) == ["a.ndjson.zst", "b.ndjson.zst"]
