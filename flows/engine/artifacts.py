"""The two artifacts of a run: the job's page and the short form of its release report, replaced in place.

Prefect lists the artifacts of a run in the random order of their ids and deletes them one by one, so one artifact per
step would have no order and make a prune slow. They have no key: a key would be shown as title (small letters and
dashes only) and make each a collection, with an event as large as the page. The description serves as title, and its
beginning distinguishes the two.
"""

from __future__ import annotations

import threading

from flows.engine.api import Json, PrefectApi
from tasks.shared.errors import NetworkError

JOB = "**The page of the job**"
"""Beginning of the title of the job's page."""

REPORT = "**The release report**"
"""Beginning of the title of the release report's short form."""

AGAIN = 3
"""Times that an artifact is created again after no answer."""


class Page:
    """A page of a run, with one ``heading``; a page left by an earlier process is looked up once. Thread-safe."""

    def __init__(self, api: PrefectApi, run_id: str, heading: str = JOB) -> None:
        self.heading = heading
        self._api = api
        self._run_id = run_id
        self._id: str | None = None
        self._lock = threading.Lock()

    def publish(self, title: str, text: str | None = None) -> None:
        """Replace the title, one line of Markdown, and the text of the page unless that is ``None``.

        If the API is bridged and the answer to a creation was lost, the page is looked up before it is created again.
        """
        with self._lock:
            for attempt in range(1, AGAIN + 1):
                try:
                    self._replace(title, text)
                except NetworkError:
                    if self._api.outage is None or self._api.outage.over or attempt == AGAIN:
                        raise
                else:
                    break

    def _replace(self, title: str, text: str | None) -> None:
        known, self._id = self._id, None  # searched again if the answer to this is lost
        known = known or self._find_artifact()
        if known is None or not update_artifact(self._api, known, title=title, text=text):
            known = create_artifact(self._api, self._run_id, title=title, text=text or "")
        self._id = known

    def _find_artifact(self) -> str | None:
        found = None
        for one in artifacts_of(self._api, self._run_id):
            if one.get("key") is None:
                is_report = str(one.get("description") or "").startswith(REPORT)
                if is_report == (self.heading == REPORT):
                    found = str(one["id"])
            else:  # of an earlier version: one for the job, and one or two for each step
                delete_artifact(self._api, str(one["id"]))
        return found


def artifacts_of(api: PrefectApi, *run_ids: str) -> list[Json]:
    """Return the artifacts of these runs."""
    return api.read_all("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": list(run_ids)}}})


def create_artifact(api: PrefectApi, run_id: str, *, title: str, text: str) -> str:
    """Create an artifact of markdown without a key; return its id."""
    body = {"type": "markdown", "data": text, "description": title, "flow_run_id": run_id}
    return api.created("/artifacts/", body)


def update_artifact(api: PrefectApi, artifact_id: str, *, title: str, text: str | None) -> bool:
    """Replace an artifact's title, and its text unless that is ``None``; return whether it was there."""
    body = {"description": title} | ({"data": text} if text is not None else {})
    return api.request("PATCH", f"/artifacts/{artifact_id}", body) is not None


def delete_artifact(api: PrefectApi, artifact_id: str) -> None:
    """Delete an artifact."""
    api.request("DELETE", f"/artifacts/{artifact_id}")
