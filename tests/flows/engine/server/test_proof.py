"""Whom a command believes to be the local Prefect server (4-product.md §6; issue 13, number 2)."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Thread

import pytest

from flows.engine.api_address import ApiAddress
from flows.engine.server.proof import NotProvedError, answer, prove
from flows.engine.server.start import EmbeddedServer, spawn
from flows.engine.server.watch import is_alive
from tasks.shared.errors import NetworkError, StorageError
from tests.conftest import Commands, seed
from tests.peers.project import allowed

SECRET = "sluice:" + "s" * 43

LIAR = """
import os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
if sys.argv[2]:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
    for file in sys.argv[3:]:
        try:
            open(file).read()
        except OSError:
            continue
        sys.exit(f"{file} can be read")
print("listening", flush=True)
while True:
    near, _ = listener.accept()
    print(repr(near.recv(65536)), flush=True)
    body = b'{"state": "ready", "proof": "' + b"0" * 64 + b'"}'
    head = b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n"
    near.sendall(head % len(body) + body)
    near.close()
"""
"""Takes over a port, as another user where it can, answers everything with 200, and says what it was sent."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Path:
    """Return a directory with a configuration and a database."""
    place = tmp_path_factory.mktemp("place")
    seed(place / "jobs", migrated_database)
    (place / "data").mkdir()
    (place / "data/Patient.ndjson").write_text('{"resourceType": "Patient", "id": "p"}\n')
    (place / "config.yaml").write_text(
        "services: {local_import: {dir: data}}\npipeline: {enabled_steps: [local_import]}\njobs_dir: jobs\n"
    )
    return place


@pytest.fixture
def home(place: Path) -> Path:
    return place / "jobs/.prefect"


@pytest.fixture
def commands(place: Path) -> Iterator[Commands]:
    commands = Commands(place, None)
    yield commands
    commands.close()


@pytest.fixture(scope="module")
def alive(place: Path) -> Iterator[ApiAddress]:
    """Yield a running server, for all tests that only check its proof."""
    with EmbeddedServer(place / "jobs") as server:
        yield server.address()


@contextmanager
def elsewhere(home: Path, port: int) -> Iterator[None]:
    """Let the file name another port for the time being."""
    state = (home / "server.json").read_text()
    (home / "server.json").write_text(json.dumps(json.loads(state) | {"url": f"http://127.0.0.1:{port}/api"}))
    try:
        yield
    finally:
        (home / "server.json").write_text(state)


@contextmanager
def liar(port: int, home: Path) -> Iterator[subprocess.Popen[str]]:
    """Somebody else at a port: another user where this machine lets us be one, else without looking at the secret."""
    other = "65534" if os.geteuid() == 0 else ""
    process = subprocess.Popen(
        [sys.executable, "-c", LIAR, str(port), other, str(home / "api-secret"), str(home / "server.json")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "listening\n", process.communicate()[1]
        yield process
    finally:
        process.kill()
        process.wait()


def received_by(process: subprocess.Popen[str]) -> str:
    """Return the bytes that another listener received."""
    process.kill()
    return process.communicate()[0]


@pytest.mark.e2e
def test_another_listener_in_the_file_of_a_live_server_gets_no_secret(
    commands: Commands, home: Path, alive: ApiAddress
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with liar(port, home) as other, elsewhere(home, port):
        for command in (("job", "list"), ("server", "status")):
            began = time.monotonic()
            ran = commands(*command, "config.yaml")
            assert time.monotonic() - began < allowed(8)  # 5 s for the proof, and the start of the program
            assert ran.code == 3
            assert "error[prefect-server-silent]: " in ran.err
            assert "does not have the secret" in ran.err
        seen = received_by(other)
    assert "GET /sluice/proof?nonce=" in seen
    assert "authorization" not in seen.lower()
    assert str(alive.secret).partition(":")[2] not in seen


@pytest.mark.e2e
@pytest.mark.parametrize("silent", ["stopped", "hanging socket"])
def test_a_server_that_lives_and_does_not_answer_is_found_within_five_seconds(
    commands: Commands, home: Path, alive: ApiAddress, silent: str
) -> None:
    pid = json.loads((home / "server.json").read_text())["pid"]
    with ExitStack() as stack:
        if silent == "stopped":
            os.kill(pid, signal.SIGSTOP)
            stack.callback(os.kill, pid, signal.SIGCONT)
        else:
            hanging = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
            stack.enter_context(elsewhere(home, hanging.getsockname()[1]))
        began = time.monotonic()
        ran = commands("pipeline", "start", "config.yaml")
        assert time.monotonic() - began < allowed(9)
        assert ran.code == 3, ran.err
        assert f"process {pid} holds" in ran.err
        assert "waiting for the local Prefect server" in ran.err


def test_the_server_of_another_directory_is_not_believed(alive: ApiAddress) -> None:
    with pytest.raises(NotProvedError, match="does not have the secret"):
        prove(SECRET, alive.port)
    prove(str(alive.secret), alive.port, seconds=30)


def test_a_listener_on_the_port_of_a_dead_server_gets_nothing_and_is_replaced(
    tmp_path: Path, migrated_database: Path, sluice_alone: Commands
) -> None:
    home = tmp_path / "jobs/.prefect"
    (tmp_path / "config.yaml").write_text("pipeline: {enabled_steps: [local_import]}\njobs_dir: jobs\n")
    child, address = spawn(home, stay=True)
    secret = (home / "api-secret").read_text()
    child.kill()
    child.wait()
    with liar(address.port, home) as other:
        ran = sluice_alone("job", "list", "config.yaml")
        assert (ran.code, ran.out) == (0, "no jobs\n"), ran.err
        assert "had ended unexpectedly" in ran.err
        assert received_by(other) == ""
    assert (home / "api-secret").read_text() != secret
    assert secret not in ran.err + ran.out


def test_a_lock_that_somebody_keeps_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.engine.server.start.START_TIMEOUT", 0.2)
    home = tmp_path / ".prefect"
    home.mkdir(mode=0o700)
    for name in ("start.lock", "clients.lock"):
        with (home / name).open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(NetworkError) as caught:
                EmbeddedServer(tmp_path).begin()
        assert caught.value.reference == "prefect-server-silent"
        assert name in str(caught.value.context)


def test_whether_a_server_lives_is_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without file descriptors would else end its job for nothing, or start a second server."""
    assert not is_alive(tmp_path / "never-made")
    (tmp_path / "server.lock").touch()
    assert not is_alive(tmp_path)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
    try:
        with pytest.raises(StorageError):
            is_alive(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def served(reply: Callable[[bytes], bytes]) -> Iterator[int]:
    """Somebody who answers one request."""
    listener = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        near, _ = listener.accept()
        with near:
            near.sendall(reply(near.recv(65536)))

    Thread(target=work, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


one_answer = contextmanager(served)


def body_of(data: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + data


def nonce_in(request: bytes) -> str:
    return request.split(b"nonce=")[1].split(b" ")[0].decode()


def test_who_knows_the_secret_proves_it() -> None:
    holder: list[int] = []

    def reply(request: bytes) -> bytes:
        return body_of(answer(SECRET, holder[0], f"nonce={nonce_in(request)}") or b"")

    with one_answer(reply) as port:
        holder.append(port)
        prove(SECRET, port, seconds=30)


def test_a_proof_fetched_from_the_real_server_on_another_port_is_refused() -> None:
    def relayed(request: bytes) -> bytes:
        return body_of(answer(SECRET, 4200, f"nonce={nonce_in(request)}") or b"")

    with one_answer(relayed) as port, pytest.raises(NotProvedError):
        prove(SECRET, port)


def test_an_answer_to_an_earlier_challenge_is_no_proof() -> None:
    old = "0" * 64
    holder: list[int] = []

    def replayed(_: bytes) -> bytes:
        return body_of(answer(SECRET, holder[0], f"nonce={old}") or b"")

    with one_answer(replayed) as port:
        holder.append(port)
        with pytest.raises(NotProvedError, match="does not have the secret"):
            prove(SECRET, port)


@pytest.mark.parametrize(
    "said", [b"", b"null", b"[]", b'"x"', b'{"state": "ready"}', b'{"state": 1, "proof": 1}', b"{" * 5000, b"\xff"]
)
def test_nonsense_is_no_proof(said: bytes) -> None:
    with one_answer(lambda _: body_of(said)) as port, pytest.raises(NotProvedError):
        prove(SECRET, port)


def test_a_byte_now_and_then_is_a_silence() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        near, _ = listener.accept()
        with near:
            try:
                for byte in body_of(b"{}" * 1000):
                    near.sendall(bytes([byte]))
                    time.sleep(0.02)
            except OSError:
                return

    thread = Thread(target=drip, daemon=True)
    thread.start()
    began = time.monotonic()
    with pytest.raises(NotProvedError, match="does not answer"):
        prove(SECRET, listener.getsockname()[1], seconds=0.3)
    assert time.monotonic() - began < allowed(2)
    listener.close()
    thread.join()


@pytest.mark.parametrize("query", ["", "nonce=", "nonce=xyz", "other=" + "0" * 64, "nonce=" + "0" * 64 + "&more"])
def test_what_is_no_challenge_is_not_answered(query: str) -> None:
    assert answer(SECRET, 1, query) is None
