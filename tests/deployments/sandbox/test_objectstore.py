"""The sandbox's object store: an S3 server in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.sandbox import objectstore
from deployments.sandbox.common.serve import SandboxStartError
from deployments.sandbox.objectstore import BUCKET, ObjectStoreChild, start_object_store
from tests.conftest import ROOT, wait_until


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStoreChild]:
    with start_object_store() as running:
        yield running


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_the_demo_bucket_is_there_from_the_start(store: ObjectStoreChild) -> None:
    assert [bucket["Name"] for bucket in store.client().list_buckets()["Buckets"]] == [BUCKET]


def test_it_says_what_it_holds(store: ObjectStoreChild) -> None:
    store.client().put_object(Bucket=BUCKET, Key="a/b", Body=b"x", Metadata={"sha256": "s"}, ContentType="text/csv")
    found = store.objects(prefix="a/")["a/b"]
    assert (found.size, found.content_type, found.metadata, found.versions) == (1, "text/csv", {"sha256": "s"}, 1)
    assert found.sha256 == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


def test_it_listens_on_loopback_only(store: ObjectStoreChild) -> None:
    assert store.url.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(f"{store.url}/moto-api/", timeout=10) as answer:
        assert answer.status == 200


@pytest.mark.slow
def test_it_ends_with_the_block_and_with_its_parent() -> None:
    with start_object_store() as running:
        pid = running.pid
        assert alive(pid)
    assert not alive(pid)
    code = (
        "import time\nfrom deployments.sandbox.objectstore import start_object_store\n"
        "print(start_object_store().pid, flush=True)\ntime.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.stdout.close()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not alive(child))


@pytest.mark.slow
def test_a_port_that_is_taken_is_a_clear_error(store: ObjectStoreChild) -> None:
    with pytest.raises(SandboxStartError):
        start_object_store(int(store.url.rpartition(":")[2]))


@pytest.mark.slow
def test_without_moto_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectstore, "available", lambda: False)
    with pytest.raises(SandboxStartError, match=r"\[objectstore\]"):
        start_object_store()
