"""Change flow runs: start through a deployment, name, label, log, emit events, complete task runs, delete; read forms.

Each is one function over the requests of ``PrefectApi``, which also reads runs and sets their states. Importing this
does not import Prefect.

A run has two artifacts, the job's page and the short form of its release report, replaced in place. Prefect lists the
artifacts of a run in the random order of their ids and deletes them one by one, so one artifact per step would have no
order and make a prune slow. They have no key: a key would be shown as title (small letters and dashes only) and make
each a collection, with an event as large as the page. The description serves as title, and its beginning distinguishes
the two.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flows.prefect.api import FLOW_NAME, TAG, Json, Label, PrefectApi
from tasks.shared.errors import InputError
from tasks.shared.log import logger
from tasks.shared.report import LONGEST_TEXT

JOB = "**The page of the job**"
"""Beginning of the title of the job's page."""

REPORT = "**The release report**"
"""Beginning of the title of the release report's short form."""


class Page:
    """A page of a run, with one ``heading``; a page left by an earlier process is looked up once. Thread-safe."""

    def __init__(self, api: PrefectApi, run_id: str, heading: str = JOB) -> None:
        self.heading = heading
        self._api = api
        self._run_id = run_id
        self._id: str | None = None
        self._lock = threading.Lock()

    def publish(self, title: str, text: str | None = None) -> None:
        """Replace the title, one line of Markdown, and the text of the page unless that is ``None``."""
        with self._lock:
            self._replace(title, text)

    def _replace(self, title: str, text: str | None) -> None:
        known, self._id = self._id, None  # searched again if the answer to this is lost
        known = known or self._find_artifact()
        if known is None or not update_artifact(self._api, known, title=title, text=text):
            known = create_artifact(self._api, self._run_id, title=title, text=text or "")
        self._id = known

    def _find_artifact(self) -> str | None:
        found = None
        for one in artifacts_of(self._api, self._run_id):
            is_report = str(one.get("description") or "").startswith(REPORT)
            if is_report == (self.heading == REPORT):
                found = str(one["id"])
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


BEHIND = "AwaitingConcurrencySlot"
"""Prefect's name for a run that waits until another one of its deployment is over."""

DEPLOYMENT = "sluice"
"""The deployment that runs detached jobs, when there are several."""

BULK = 50
"""Maximum runs that Prefect deletes with one request."""


def find_deployments(api: PrefectApi) -> list[Json]:
    """Return the deployments of the flow that are tagged as ours."""
    body = {"flows": {"name": {"any_": [FLOW_NAME]}}, "deployments": {"tags": {"all_": [TAG]}}, "limit": 50}
    rows: list[Json] = api.request("POST", "/deployments/filter", body) or []
    return rows


def choose_deployment(api: PrefectApi) -> str:
    """Return the id of the deployment that runs detached jobs: the only one, or the one named ``DEPLOYMENT``.

    Raises:
        InputError: there is none, or none of several has that name.
    """
    found = find_deployments(api)
    chosen = [one for one in found if one["name"] == DEPLOYMENT] or found
    if not chosen:
        raise InputError(
            "no-deployment", "there is no deployment of the flow", context=api.address.ui,
            hint="create one with deployments/prefect.yaml, or leave out --detach",
        )  # fmt: skip
    if len(chosen) > 1:
        raise InputError(
            "deployment-ambiguous", "more than one deployment of the flow could take the run",
            context=", ".join(str(one["name"]) for one in chosen),
            hint=f"name one of them {DEPLOYMENT}, or start the run from the Prefect UI",
        )  # fmt: skip
    return str(chosen[0]["id"])


def run_deployment(api: PrefectApi, deployment_id: str, parameters: Mapping[str, Any]) -> str:
    """Start a run through a deployment and return its job id. Repeating the call starts no second run.

    ``None`` is sent as an empty text, as the deployment's form does: not given, even if the deployment has a default.
    """
    given = {name: "" if value is None else value for name, value in parameters.items()}
    body = {"parameters": given, "idempotency_key": str(uuid4())}
    return api.created(f"/deployments/{deployment_id}/create_flow_run", body)


def rename_run(api: PrefectApi, run_id: str, name: str) -> None:
    """Set the displayed name of the run."""
    api.request("PATCH", f"/flow_runs/{run_id}", {"name": name})


def set_parameters(api: PrefectApi, run_id: str, parameters: Mapping[str, Any]) -> None:
    """Replace the run's parameters: a continued job reads the configuration file it is given now."""
    api.request("PATCH", f"/flow_runs/{run_id}", {"parameters": dict(parameters)})


def set_labels(api: PrefectApi, run_id: str, labels: Mapping[str, Label]) -> bool:
    """Merge ``labels`` into the run's; ``True`` once durable, ``False`` without such a run.

    An empty string clears one.
    """
    return api.request("PATCH", f"/flow_runs/{run_id}/labels", dict(labels)) is not None


def delete_runs(api: PrefectApi, run_ids: Sequence[str]) -> None:
    """Delete at most ``BULK`` runs and their artifacts. The runs go last: remaining artifacts are found by them."""
    for artifact in artifacts_of(api, *run_ids):
        delete_artifact(api, str(artifact["id"]))
    api.request("POST", "/flow_runs/bulk_delete", {"flow_runs": {"id": {"any_": list(run_ids)}}, "limit": BULK})


def append_log(api: PrefectApi, run_id: str, level: int, message: str) -> None:
    """Append a line to the log of a run that is not running. ``level`` is a level of ``logging``."""
    moment = datetime.now(UTC).isoformat()
    line = {"name": logger.name, "level": level, "message": message, "timestamp": moment, "flow_run_id": run_id}
    api.request("POST", "/logs/", [line])


class FormAnswer(BaseModel):
    """A person's decision. No field has a default decision or reviewer."""

    model_config = ConfigDict(extra="forbid")

    # In Prefect 3.8 a click into the field of a list opens and closes it at once: only its arrow opens it, or a key.
    decision: Literal["release", "reject"] = Field(title="Decision", description="Open the list with its arrow.")
    by: str = Field(
        title="Your name", description="Recorded with the decision.", min_length=1, max_length=LONGEST_TEXT,
        pattern=r"\S",
    )  # fmt: skip
    comment: str = Field(
        "", title="Comment", description="Required if the release report has stops or could not be made.",
        max_length=LONGEST_TEXT,
    )  # fmt: skip


def form_answer(api: PrefectApi, job_id: str, key: str | None) -> FormAnswer | None:
    """Return the answer in the form saved under ``key``; ``None`` if it is not a person's decision.

    A run may be resumed without one: its state was set by hand.
    """
    try:
        return FormAnswer.model_validate(api.request("GET", f"/flow_runs/{job_id}/input/{key}")) if key else None
    except ValidationError:
        return None
