"""S3 servers over a directory that verify signatures and digests: versitygw and MinIO."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import boto3
import pytest
import trustme
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.conftest import free_ports
from tests.peers.s3 import KEY_ID, SECRET
from tests.real.programs import HOST, listens, program, running, scratch

BUCKET = "sluice-real"
REGION = "eu-central-1"
DOMAIN = "s3.hospital.test"
"""Names of buckets stand in front of this one, for virtual-host addressing."""


@dataclass(frozen=True)
class Tls:
    """PEM files: the server's certificate and key, and the authority that issued it."""

    chain: Path
    key: Path
    authority: Path

    @classmethod
    def issue(cls, directory: Path) -> Self:
        """New ones for loopback."""
        files = cls(directory / "chain.pem", directory / "key.pem", directory / "ca.pem")
        authority = trustme.CA()
        issued = authority.issue_cert(HOST)
        authority.cert_pem.write_to_path(str(files.authority))
        issued.cert_chain_pems[0].write_to_path(str(files.chain))
        issued.private_key_pem.write_to_path(str(files.key))
        return files


@dataclass(frozen=True)
class S3Store:
    """A running store, and a client of its own that shares nothing with the code under test."""

    url: str
    port: int
    s3: Any
    unfinished: Callable[[], list[str]]
    """The multipart uploads of the bucket that are neither completed nor aborted: their keys, or of MinIO their ids."""
    program: Path
    admin: str = ""
    """Where versitygw is administered."""

    def objects(self, prefix: str) -> dict[str, str]:
        """SHA-256 of every object under a prefix, by key."""
        found = {}
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix):
            for item in page.get("Contents", ()):
                body = self.s3.get_object(Bucket=BUCKET, Key=item["Key"])["Body"]
                found[item["Key"]] = hashlib.sha256(body.read()).hexdigest()
                body.close()
        return found

    def add_user(self, key_id: str, secret: str, *actions: str) -> None:
        """A user of versitygw who may do nothing but these actions, in ``BUCKET``."""
        command = (str(self.program), "admin", "create-user", "--role", "user", "--access", key_id, "--secret", secret)
        root = {"ADMIN_ACCESS_KEY": KEY_ID, "ADMIN_SECRET_KEY": SECRET, "ADMIN_REGION": REGION}
        environ = root | {"ADMIN_ENDPOINT_URL": self.admin}
        subprocess.run(command, check=True, capture_output=True, timeout=20, env=environ)
        arn = f"arn:aws:s3:::{BUCKET}"
        allow = {"Effect": "Allow", "Principal": {"AWS": [key_id]}, "Action": list(actions), "Resource": [f"{arn}/*"]}
        policy = {"Version": "2012-10-17", "Statement": [allow]}
        self.s3.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps(policy))


@contextmanager
def _versitygw(home: Path, before: list[str | Path], tls: Tls | None) -> Iterator[S3Store]:
    command = program("versitygw", "SLUICE_REAL_S3", "python tests/real/get.py versitygw")
    (home / "iam").mkdir()
    port = free_ports(2)
    admin = port + 1
    options: list[str | Path] = ["--port", f"{HOST}:{port}", "--admin-port", f"{HOST}:{admin}"]
    options += ["--region", REGION, "--iam-dir", home / "iam", "--virtual-domain", DOMAIN, "--keep-alive"]
    if tls is not None:
        options += ["--cert", tls.chain, "--key", tls.key]
    keys = {"ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": SECRET}
    serve = [*before, command, *options, "posix", home / "data"]
    with running("versitygw", serve, home / "log", environ=keys, port=port) as server, _client(port, tls) as s3:
        server.wait(lambda: listens(admin), 60)

        def unfinished() -> list[str]:
            return [upload["Key"] for upload in s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ())]

        yield S3Store(_url(port, tls), port, s3, unfinished, command, f"http://{HOST}:{admin}")


@contextmanager
def _minio(home: Path, before: list[str | Path], tls: Tls | None) -> Iterator[S3Store]:
    command = program("minio", "SLUICE_REAL_MINIO", "python tests/real/get.py minio")
    certificates = home / "certificates"
    certificates.mkdir()
    if tls is not None:
        shutil.copy(tls.chain, certificates / "public.crt")
        shutil.copy(tls.key, certificates / "private.key")
    port = free_ports(2)
    options: list[str | Path] = ["--address", f"{HOST}:{port}", "--console-address", f"{HOST}:{port + 1}"]
    options += ["--certs-dir", certificates, "--json"]
    keys = {
        "MINIO_ROOT_USER": KEY_ID, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_SITE_REGION": REGION, "MINIO_DOMAIN": DOMAIN,
        "MINIO_BROWSER": "off", "MINIO_UPDATE": "off", "HOME": str(home),
        "MINIO_API_DELETE_CLEANUP_INTERVAL": "1s",  # room that a delete gives back, five minutes else
    }  # fmt: skip
    serve = [*before, command, "server", *options, home / "data"]
    with running("MinIO", serve, home / "log", environ=keys, port=port) as server, _client(port, tls) as s3:
        server.wait(lambda: _answers(s3), 60)

        def unfinished() -> list[str]:
            # It lists an upload for its whole key only: what it keeps of each is what tells.
            return [path.parent.name for path in (home / "data/.minio.sys/multipart").glob("*/*/xl.meta")]

        yield S3Store(_url(port, tls), port, s3, unfinished, command)


STORES: dict[str, Callable[[Path, list[str | Path], Tls | None], AbstractContextManager[S3Store]]] = {
    "versitygw": _versitygw,
    "minio": _minio,
}


@contextmanager
def s3_running(kind: str, *, tls: Tls | None = None, space: int | None = None) -> Iterator[S3Store]:
    """Yield a store with an empty bucket; with ``tls`` over https. ``space``: bytes it has for objects."""
    with scratch() as home:
        (home / "data").mkdir()
        before = _small_disk(home / "data", space) if space else []
        with STORES[kind](home, before, tls) as store:
            store.s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
            yield store


def _url(port: int, tls: Tls | None) -> str:
    return f"{'https' if tls else 'http'}://{HOST}:{port}"


@contextmanager
def _client(port: int, tls: Tls | None) -> Iterator[Any]:
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=_url(port, tls),
        region_name=REGION,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        verify=str(tls.authority) if tls else None,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )
    try:
        yield client
    finally:
        client.close()


def _answers(s3: Any) -> bool:
    """Return whether a store that listens also answers requests."""
    try:
        s3.list_buckets()
    except ClientError:
        return False
    return True


def refusal(call: Any, **arguments: Any) -> str:
    """Return the code with which the store refuses a call; empty when it does not."""
    try:
        call(**arguments)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def _small_disk(path: Path, space: int) -> list[str | Path]:
    """Return the words that run a command with a private disk at ``path``, which is removed at its end."""
    unshare = program("unshare", "SLUICE_REAL_UNSHARE", "it belongs to util-linux")
    own = [str(unshare), "--map-root-user", "--mount"]
    if subprocess.run([*own, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not allow a mount of one's own (unshare --map-root-user --mount)")
    mount = f"mount -t tmpfs -o size={space} tmpfs {shlex.quote(str(path))}"
    return [*own, "sh", "-c", f'{mount} && exec "$0" "$@"']
