"""The artifacts of a run, replaced in place: the job's page, the short form of its release report, its progress.

They have no key, because Prefect would show it as the title. The description is the title. Its beginning differs for
each of the three.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flows.prefect.api import Json, PrefectApi
from tasks.shared.errors import SluiceError
from tasks.shared.log import logger

JOB = "**The page of the job**"
"""Beginning of the title of the job's page."""

REPORT = "**The release report**"
"""Beginning of the title of the release report's short form."""

PROGRESS = "Step "
"""Beginning of the title of the running step's progress."""


@contextmanager
def best_effort(what: str) -> Iterator[None]:
    """Log an error of the block instead of failing the run, because the text is for people only."""
    try:
        yield
    except SluiceError as error:
        logger.warning("%s is not written: %s", what, error.message)


class Artifact:
    """An artifact of a run. If an earlier process left one, it is found by ``heading``, the beginning of its title."""

    def __init__(self, api: PrefectApi, run_id: str, heading: str, kind: str = "markdown") -> None:
        self.id: str | None = None
        self._heading = heading
        self._api = api
        self._new = {"type": kind, "flow_run_id": run_id}

    def publish(self, title: str, data: str | int) -> None:
        """Replace the title (one line of Markdown) and the content: a text, or a percentage."""
        body = {"description": title, "data": data}
        known, self.id = self.id or self._find(), None  # if this call fails, the next one searches again
        if known is None or self._api.request("PATCH", f"/artifacts/{known}", body) is None:
            known = self._api.created("/artifacts/", self._new | body)
        self.id = known

    def _find(self) -> str | None:
        found = artifacts_of(self._api, self._new["flow_run_id"])
        ours = [one for one in found if str(one.get("description")).startswith(self._heading)]
        return str(ours[-1]["id"]) if ours else None


def artifacts_of(api: PrefectApi, run_id: str) -> list[Json]:
    """Return the artifacts of a run."""
    return api.read_all("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run_id]}}})


def delete_run(api: PrefectApi, run_id: str) -> None:
    """Delete a run and its artifacts. The run is deleted last, because it is needed to find the artifacts."""
    for artifact in artifacts_of(api, run_id):
        api.request("DELETE", f"/artifacts/{artifact['id']}")
    api.request("DELETE", f"/flow_runs/{run_id}")
