"""Fake S3 store that records its requests, and a job that uploads to it."""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx

from config import PipelineConfig
from tasks.send.comparison import compare
from tasks.send.s3.upload import MIB, Sizes, run
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tests.peers import job
from tests.peers.server import Loopback, Raw, Reply, SeenRequest

KEY_ID = "AKIDCANARY"
SECRET = "canary-secret-4711"
SMALL = Sizes(threshold=6 * MIB, part=5 * MIB)
"""Parts as small as S3 allows, so that a test need not move much."""


def configuration(
    endpoint: str | None, *, attempts: int = 3, more: dict[str, Any] | None = None, **s3: Any
) -> PipelineConfig:
    fields: dict[str, Any] = {
        "bucket": "sluice-demo",
        "region": "eu-central-1",
        "access_key_id": KEY_ID,
        "secret_access_key": SECRET,
        "use_path_style": True,
    }
    if endpoint is not None:
        fields["endpoint"] = endpoint
    top = dict(more or {})
    send = {"send_as": "s3_upload", "s3": fields | s3} | top.pop("send", {})
    return job.configuration({"send": send}, attempts=attempts, **top)


class S3Job(job.StepJob):
    """A job whose files are uploaded."""

    step = "send"
    write = job.StepJob.put

    def __init__(self, directory: Path, *, job_id: str = "job-1", source: str = "import") -> None:
        self.job_id = job_id
        super().__init__(directory, source)

    def prepare(self, config: PipelineConfig, **more: Any) -> StepContext:
        return super().prepare(config, job_id=self.job_id, **more)

    def send(
        self,
        config: PipelineConfig | str,
        *,
        sizes: Sizes | None = None,
        transport: httpx.BaseTransport | None = None,
        environ: dict[str, str] | None = None,
        **more: Any,
    ) -> StepReport:
        context = self.prepare(configuration(config) if isinstance(config, str) else config, **more)
        seams: dict[str, Any] = {"transport": transport, "environ": environ or {}, "sleep": self.slept.append}
        return run(context, compare(context), sizes=sizes, **seams)

    @property
    def manifest(self) -> Path:
        return self.directory / "send" / "upload_manifest.json"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def refusal(status: int, code: str, extra: str = "", **headers: str) -> Reply:
    """Return an error document as S3 writes it; the text must never show."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>CANARY-TEXT {SECRET}</Message>{extra}</Error>"
    return Reply(status, body.encode(), {"Content-Type": "application/xml", **headers})


Script = Callable[["S3Request"], "Reply | Raw | None"]


class S3Request:
    """One request, as S3 reads it."""

    def __init__(self, seen: SeenRequest) -> None:
        parts = urlsplit(seen.target)
        query = parse_qs(parts.query, keep_blank_values=True)
        self.seen = seen
        self.path = unquote(parts.path)
        self.key = self.path.split("/", 2)[2] if self.path.count("/") > 1 else ""
        self.upload_id = query.get("uploadId", [""])[0]
        self.part = int(query.get("partNumber", ["0"])[0])
        match seen.method, "uploads" in query, bool(self.upload_id):
            case "HEAD", _, _:
                self.name = "HeadObject" if self.key else "HeadBucket"
            case "POST", True, _:
                self.name = "CreateMultipartUpload"
            case "POST", _, True:
                self.name = "CompleteMultipartUpload"
            case "DELETE", _, True:
                self.name = "AbortMultipartUpload"
            case "PUT", _, True:
                self.name = "UploadPart"
            case _:
                self.name = "PutObject"


class ScriptedStore(Loopback):
    """Stores what is PUT, in memory; ``script`` may answer differently, and then nothing is stored."""

    def __init__(self, script: Script | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.asked: list[S3Request] = []
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.etags: dict[str, str] = {}
        """Of the objects that were uploaded in parts."""
        self.parts: dict[str, dict[int, bytes]] = {}
        self.begun: dict[str, tuple[str, dict[str, str]]] = {}
        super().__init__(self._answer, tls=tls)

    def names(self) -> list[str]:
        return [asked.name for asked in self.asked]

    def of(self, name: str) -> list[S3Request]:
        return [asked for asked in self.asked if asked.name == name]

    def _answer(self, seen: SeenRequest) -> Reply | Raw:
        asked = S3Request(seen)
        self.asked.append(asked)
        scripted = self.script(asked) if self.script else None
        return scripted if scripted is not None else self.serve(asked)

    def serve(self, asked: S3Request) -> Reply:
        handlers: dict[str, Callable[[S3Request], Reply]] = {
            "HeadBucket": self._head_bucket,
            "HeadObject": self._head_object,
            "PutObject": self._put_object,
            "CreateMultipartUpload": self._create_multipart_upload,
            "UploadPart": self._upload_part,
            "CompleteMultipartUpload": self._complete_multipart_upload,
            "AbortMultipartUpload": self._abort_multipart_upload,
        }
        return handlers[asked.name](asked)

    def _head_bucket(self, asked: S3Request) -> Reply:
        return Reply(200)

    def _head_object(self, asked: S3Request) -> Reply:
        if asked.key not in self.objects:
            return Reply(404)
        body, headers = self.objects[asked.key]
        kept = {name: value for name, value in headers.items() if name.startswith("x-amz-meta-")}
        return Reply(
            200,
            b"",
            kept
            | {
                "ETag": f'"{self.etags.get(asked.key, hashlib.md5(body).hexdigest())}"',
                "Last-Modified": "Mon, 02 Mar 2026 09:15:00 GMT",
            },
            length=len(body),
        )

    def _put_object(self, asked: S3Request) -> Reply:
        self.objects[asked.key] = (asked.seen.body, asked.seen.headers)
        self.etags.pop(asked.key, None)
        return Reply(200, b"", {"ETag": f'"{hashlib.md5(asked.seen.body).hexdigest()}"'})

    def _create_multipart_upload(self, asked: S3Request) -> Reply:
        upload = f"u{len(self.parts) + 1}"
        self.begun[upload] = (asked.key, asked.seen.headers)
        self.parts[upload] = {}
        body = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        return Reply(200, body.encode())

    def _upload_part(self, asked: S3Request) -> Reply:
        if asked.upload_id not in self.begun:
            return refusal(404, "NoSuchUpload")
        self.parts[asked.upload_id][asked.part] = asked.seen.body
        return Reply(200, b"", {"ETag": f'"p{asked.part}"'})

    def _complete_multipart_upload(self, asked: S3Request) -> Reply:
        if asked.upload_id not in self.begun:
            return refusal(404, "NoSuchUpload")
        key, headers = self.begun.pop(asked.upload_id)
        numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", asked.seen.body)]
        self.objects[key] = (b"".join(self.parts[asked.upload_id][number] for number in numbers), headers)
        self.etags[key] = "whole-3"
        body = '<CompleteMultipartUploadResult><ETag>"whole-3"</ETag></CompleteMultipartUploadResult>'
        return Reply(200, body.encode())

    def _abort_multipart_upload(self, asked: S3Request) -> Reply:
        if self.begun.pop(asked.upload_id, None) is None:
            return refusal(404, "NoSuchUpload")
        return Reply(204)


scripted = ScriptedStore
"""``with scripted(…) as store``"""
