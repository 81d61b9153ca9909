"""An object store for tests: moto's S3 server, on loopback, in its own process.

It keeps all data in memory and accepts any key: it tests a client's requests, but not the permissions of a real store.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import logging
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.sandbox.common.child import Child, start_process, watch, write_whole
from deployments.sandbox.common.serve import ERROR_PREFIX, HOST, SandboxStartError, bind

BUCKET = "sluice-demo"
"""Name of the bucket that exists from the start."""
REGION = "eu-central-1"
ACCESS_KEY_ID = "sandbox"
SECRET_ACCESS_KEY = "sandbox-secret"


@dataclass(frozen=True)
class StoredObject:
    """One object in the store. ``size`` in bytes; ``sha256`` (hex) of its content, read back."""

    size: int
    sha256: str
    etag: str
    content_type: str
    content_encoding: str | None
    metadata: dict[str, str]
    versions: int


class ObjectStoreChild(Child):
    """A running object store."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        super().__init__(process)
        self._client: Any = None
        self.url = url
        """Endpoint with path-style addressing."""

    def client(self) -> Any:
        """Return a boto3 client for inspecting the store; always the same one, closed with the store."""
        if self._client is None:
            import boto3.session

            self._client = boto3.session.Session().client(
                "s3",
                endpoint_url=self.url,
                region_name=REGION,
                aws_access_key_id=ACCESS_KEY_ID,
                aws_secret_access_key=SECRET_ACCESS_KEY,
            )
        return self._client

    def objects(self, bucket: str = BUCKET, prefix: str = "") -> dict[str, StoredObject]:
        """Return the objects of a bucket by key."""
        client = self.client()
        found: dict[str, StoredObject] = {}
        versions: dict[str, int] = {}
        for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix):
            for version in page.get("Versions", ()):
                versions[version["Key"]] = versions.get(version["Key"], 0) + 1
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for entry in page.get("Contents", ()):
                answer = client.get_object(Bucket=bucket, Key=entry["Key"])
                digest, size = hashlib.sha256(), 0
                for data in answer["Body"].iter_chunks(1024 * 1024):
                    digest.update(data)
                    size += len(data)
                found[entry["Key"]] = StoredObject(
                    size,
                    digest.hexdigest(),
                    answer["ETag"].strip('"'),
                    answer["ContentType"],
                    answer.get("ContentEncoding"),
                    answer["Metadata"],
                    versions.get(entry["Key"], 0),
                )
        return found

    def stop(self, timeout: float = 5.0) -> None:
        """End the process and wait for it; kill it after ``timeout`` seconds. Further calls do nothing."""
        if self._client is not None:
            self._client.close()
        super().stop(timeout)


def start_object_store(port: int = 0) -> ObjectStoreChild:
    """Start the store in a child process and return when it answers. The store ends with this process.

    Raises ``SandboxStartError`` if the child does not start.
    """
    process, startup = start_process("tests.peers.objectstore", ["--port", str(port)])
    return ObjectStoreChild(process, startup["url"])


def _serve(port: int, parent: int | None, ready: Path | None) -> None:
    """Serve until a signal, or until the process ``parent`` has ended."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import WSGIRequestHandler, make_server

    class ObjectStoreHandler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open, as with real stores

        def log(self, *_: object) -> None:
            """Log nothing: object keys are file names."""

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    s3_backends["123456789012"]["aws"].create_bucket(BUCKET, REGION)
    listener = bind(port)
    application = DomainDispatcherApplication(create_backend_app)
    server = make_server(
        HOST,
        listener.getsockname()[1],
        application,
        threaded=True,
        request_handler=ObjectStoreHandler,
        fd=listener.fileno(),
    )
    # shutdown() waits for the loop, which runs in this thread, so another thread must call it.
    stop = threading.Event()

    def end() -> None:
        stop.wait()
        server.shutdown()

    threading.Thread(target=end, daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if parent is not None:
        threading.Thread(target=lambda: asyncio.run(watch(parent, stop.set)), daemon=True).start()
    url = f"http://{HOST}:{server.port}"
    if ready is not None:
        write_whole(ready, json.dumps({"url": url, "bucket": BUCKET}))
    sys.stdout.write(f"object store: {url} bucket {BUCKET}\n")
    sys.stdout.flush()
    server.serve_forever(poll_interval=0.1)
    server.server_close()
    listener.close()


def main(words: list[str] | None = None) -> int:
    """Run the store alone and return the exit code."""
    parser = argparse.ArgumentParser(description="Run the object store.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--parent", type=int)
    parser.add_argument("--ready-file", type=Path)
    options = parser.parse_args(words)
    try:
        _serve(options.port, options.parent, options.ready_file)
    except SandboxStartError as error:
        sys.stderr.write(f"{ERROR_PREFIX}{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
