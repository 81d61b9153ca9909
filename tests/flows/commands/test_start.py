"""Output of ``pipeline start`` before the job has an id: no silent phase (``4-product.md`` §5)."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

from config import load_config
from flows.commands import start
from flows.engine.api_address import ApiAddress


class IdleServer:
    """A local Prefect server that is found or started, without any request."""

    def __init__(self, starts: bool) -> None:
        self.starts = starts

    def announced(self) -> ApiAddress:
        return ApiAddress("http://127.0.0.1:9/api")

    def address(self) -> ApiAddress:
        raise NotImplementedError


@pytest.mark.parametrize("starts", [True, False])
def test_loading_prefect_is_reported_unless_the_start_of_a_server_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    said: list[str] = []
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setitem(sys.modules, "flows.pipeline", ModuleType("flows.pipeline"))  # which brings Prefect
    monkeypatch.setattr(start, "patience", lambda text: nullcontext(said.append(text)))
    monkeypatch.setattr(start, "EmbeddedServer", lambda *_, **__: nullcontext(IdleServer(starts)))
    monkeypatch.setattr(start.api_address, "use", lambda *_: None)
    (tmp_path / "c.yaml").write_text(f"pipeline: {{enabled_steps: [local_import]}}\njobs_dir: {tmp_path}\n")
    with pytest.raises(NotImplementedError), start.opened_with_prefect(load_config(tmp_path / "c.yaml")):
        pass
    assert said == ([] if starts else ["starting Prefect"])
