"""versitygw: an S3 server over a directory that verifies signatures and digests."""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
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

HOW = "go install github.com/versity/versitygw/cmd/versitygw@latest, and SLUICE_REAL_S3=<the program>"
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
    program: Path
    admin: str
    s3: Any

    def objects(self, bucket: str = BUCKET) -> dict[str, str]:
        """SHA-256 of every object, by key."""
        found = {}
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for item in page.get("Contents", ()):
                body = self.s3.get_object(Bucket=bucket, Key=item["Key"])["Body"]
                found[item["Key"]] = hashlib.sha256(body.read()).hexdigest()
                body.close()
        return found

    def unfinished(self, bucket: str = BUCKET) -> list[str]:
        """Keys of the multipart uploads that are neither completed nor aborted."""
        return [upload["Key"] for upload in self.s3.list_multipart_uploads(Bucket=bucket).get("Uploads", ())]

    def add_user(self, key_id: str, secret: str, bucket: str, *actions: str) -> None:
        """A user who may do nothing but these actions, in one bucket."""
        command = (str(self.program), "admin", "create-user", "--role", "user", "--access", key_id, "--secret", secret)
        root = {"ADMIN_ACCESS_KEY": KEY_ID, "ADMIN_SECRET_KEY": SECRET, "ADMIN_REGION": REGION}
        environ = root | {"ADMIN_ENDPOINT_URL": self.admin}
        subprocess.run(command, check=True, capture_output=True, timeout=20, env=environ)
        arn = f"arn:aws:s3:::{bucket}"
        allow = {"Effect": "Allow", "Principal": {"AWS": [key_id]}, "Action": list(actions), "Resource": [f"{arn}/*"]}
        policy = {"Version": "2012-10-17", "Statement": [allow]}
        self.s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))


@contextmanager
def s3_running(*, tls: Tls | None = None, space: int | None = None) -> Iterator[S3Store]:
    """A store with an empty bucket; with ``tls`` over https. ``space``: bytes it has for objects."""
    command = program("versitygw", "SLUICE_REAL_S3", HOW)
    with scratch() as home:
        data = home / "data"
        for path in (data, home / "iam"):
            path.mkdir()
        before = _small_disk(data, space) if space else []
        port = free_ports(2)
        admin = port + 1
        options: list[str | Path] = ["--port", f"{HOST}:{port}", "--admin-port", f"{HOST}:{admin}"]
        options += ["--region", REGION, "--iam-dir", home / "iam", "--virtual-domain", DOMAIN, "--keep-alive"]
        if tls is not None:
            options += ["--cert", tls.chain, "--key", tls.key]
        keys = {"ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": SECRET}
        url = f"{'https' if tls else 'http'}://{HOST}:{port}"
        serve = [*before, command, *options, "posix", data]
        with running("versitygw", serve, home / "log", environ=keys, port=port) as server:
            server.wait(lambda: listens(admin), 60)
            client = boto3.session.Session().client(
                "s3",
                endpoint_url=url,
                region_name=REGION,
                aws_access_key_id=KEY_ID,
                aws_secret_access_key=SECRET,
                verify=str(tls.authority) if tls else None,
                config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
            )
            try:
                client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
                yield S3Store(url, port, command, f"http://{HOST}:{admin}", client)
            finally:
                client.close()


def refusal(call: Any, **arguments: Any) -> str:
    """The code with which the store refuses a call; empty when it does not."""
    try:
        call(**arguments)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def _small_disk(path: Path, space: int) -> list[str | Path]:
    """What runs a command with a disk of its own at ``path``, which goes away with it."""
    unshare = program("unshare", "SLUICE_REAL_UNSHARE", "it belongs to util-linux")
    own = [str(unshare), "--map-root-user", "--mount"]
    if subprocess.run([*own, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not allow a mount of one's own (unshare --map-root-user --mount)")
    mount = f"mount -t tmpfs -o size={space} tmpfs {shlex.quote(str(path))}"
    return [*own, "sh", "-c", f'{mount} && exec "$0" "$@"']
