"""The environment of other programs works, or is an error that names it: at ``plan`` already, and at ``start``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Commands
from tests.peers.data import patient, write

IPV6 = {"NO_PROXY": "localhost,fd00::/8,[fd00::1],::1", "HTTP_PROXY": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("environ", "code", "said"),
    [
        (IPV6, 0, ""),
        ({"ALL_PROXY": "socks5://127.0.0.1:1"}, 2, "error[proxy-invalid]: the environment variable ALL_PROXY"),
        ({"SSL_CERT_FILE": "/missing"}, 2, "error[ssl-cert-file]: the environment variable SSL_CERT_FILE"),
    ],
)
def test_what_cannot_work_is_named(
    sluice_process: Commands, tmp_path: Path, environ: dict[str, str], code: int, said: str
) -> None:
    write(tmp_path / "data/a.ndjson", patient("p"))
    config = {
        "pipeline": {"enabled_steps": ["local_import"]}, "jobs_dir": "jobs",
        "services": {"local_import": {"dir": "data"}},
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    for command in ("plan", "start"):
        ran = sluice_process("pipeline", command, "config.yaml", env=environ)
        assert (ran.code, said in ran.err) == (code, True), (command, ran.err)
        assert "internal" not in ran.err
