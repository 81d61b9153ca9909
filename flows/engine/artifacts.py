"""The artifacts of one run: made once, then replaced in place, each under its key."""

from __future__ import annotations

import threading
from typing import Any

from flows.engine.api import PrefectApi


class Artifacts:
    """The artifacts of a run by their keys. What an earlier process left is asked for once. Thread-safe."""

    def __init__(self, api: PrefectApi, run_id: str) -> None:
        self._api = api
        self._run_id = run_id
        self._ids: dict[str, str] | None = None
        self._lock = threading.Lock()

    def publish(self, key: str, kind: str, data: Any, description: str) -> None:
        """Make the artifact (``kind``: markdown, table, progress), or replace what it says: one request."""
        with self._lock:
            if self._ids is None:
                self._ids = {str(one["key"]): str(one["id"]) for one in self._api.artifacts(self._run_id)}
            known = self._ids.get(key)
            if known is not None and self._api.update_artifact(known, data=data, description=description):
                return
            ids, self._ids = self._ids, None  # asked for anew when the answer to this is lost
            ids[key] = self._api.create_artifact(self._run_id, key=key, kind=kind, data=data, description=description)
            self._ids = ids


def step_key(kind: str, position: int, name: str, job_id: str) -> str:
    """The key of an artifact of a step, which is its title in the UI: what it is first, of which job last."""
    return f"{kind}-{position}-{name}-{job_id[:8]}".replace("_", "-")
