"""Where data leave to, whether somebody answers there, and what it takes on this side (document 1, services.send)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from config import PipelineConfig, SendMode
from tasks.send.probe import PROBE
from tasks.shared.http.answer import place
from tasks.shared.service import Found, Service
from tasks.shared.step import CheckContext


class StoreProbe:
    """Whether an S3-compatible store has the bucket: HeadBucket."""

    proves = True

    def ask(self, service: Service, config: PipelineConfig, **more: Any) -> Iterator[Found]:
        """See ``tasks.shared.service.Probe``."""
        from tasks.send.s3 import upload  # boto3 is slow to import

        yield from upload.findings(config, **more)


def service(config: PipelineConfig) -> Service:
    """``services.send``, as its mode says: a FHIR server or a bucket."""
    send = config.services.send
    if send.send_as is not SendMode.S3_UPLOAD:
        return Service("send", send.url, send.auth, PROBE, f"{place(send.url or '')} ({send.send_as})")
    store = place(send.s3.endpoint) if send.s3.endpoint else f"the public service in {send.s3.region}"
    words = f"bucket {send.s3.bucket} at {store} (s3_upload)"
    return Service("send", send.s3.endpoint, send.auth, StoreProbe(), words)


def space(context: CheckContext, read: int) -> int:
    """A transfer makes a zip, which goes when it has arrived."""
    return read if context.config.services.send.send_as is SendMode.TRANSFER_LOAD else 0
