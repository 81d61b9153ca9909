"""versitygw, an S3 server that verifies every signature and digest (docs/services.md)."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tasks.send.step import STEP
from tasks.shared.errors import TerminalError
from tasks.shared.report import StepReport
from tests.peers.job import configuration, context
from tests.real.conftest import Start
from tests.real.services import BUCKET, KEY_ID, REGION, SECRET

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def test_objects_equal_their_sources_and_are_not_sent_again(start: Start, tmp_path: Path) -> None:
    url = start("versitygw")
    store = boto3.session.Session().client(
        "s3", endpoint_url=url, region_name=REGION, aws_access_key_id=KEY_ID, aws_secret_access_key=SECRET,
        config=Config(s3={"addressing_style": "path"}),
    )  # fmt: skip
    store.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    draw, source = random.Random(1), tmp_path / "import"
    source.mkdir()
    (source / "core.ndjson.zst").write_bytes(draw.randbytes(100_000))
    (source / "large.ndjson").write_bytes(draw.randbytes(70_000_000))  # in parts
    (source / "Größe & Maß.csv").write_bytes(b"")

    def send(**more: Any) -> StepReport:
        s3 = {"endpoint": url, "bucket": BUCKET, "region": REGION, "use_path_style": True, "prefix": "site"}
        s3 |= {"access_key_id": KEY_ID, "secret_access_key": SECRET} | more
        config = configuration({"send": {"send_as": "s3_upload", "s3": s3}})
        return STEP.run(context(tmp_path, "send", config, source=source))

    for wrong in ({"secret_access_key": "wrong"}, {"bucket": "none"}):
        with pytest.raises(TerminalError) as caught:
            send(**wrong)
        assert caught.value.reference.startswith("s3-")
    assert send().files == 3
    wanted = {f"site/j/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in source.iterdir()}
    found = {}
    for item in store.list_objects_v2(Bucket=BUCKET, Prefix="site/")["Contents"]:
        stored = store.get_object(Bucket=BUCKET, Key=item["Key"])
        found[item["Key"]] = hashlib.sha256(stored["Body"].read()).hexdigest()
        if item["Key"] in wanted:
            assert stored["Metadata"] == {"sha256": wanted[item["Key"]]}
    assert {key: found[key] for key in wanted} == wanted
    manifest = json.loads((tmp_path / "send" / "upload_manifest.json").read_text())
    assert {entry["key"]: entry["sha256"] for entry in manifest} == wanted
    before = store.head_object(Bucket=BUCKET, Key="site/j/large.ndjson")["LastModified"]
    send()
    assert store.head_object(Bucket=BUCKET, Key="site/j/large.ndjson")["LastModified"] == before
    assert "Uploads" not in store.list_multipart_uploads(Bucket=BUCKET)
