"""Read an answer to the form of a wait, given in the Prefect UI or through its API. Without importing Prefect."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flows.engine.api import PrefectApi


class FormAnswer(BaseModel):
    """A person's decision. No field has a default decision or reviewer.

    Values are the same in every language; the form supplies the labels of the fields.
    """

    model_config = ConfigDict(extra="forbid")

    # In Prefect 3.8 a click into the field of a list opens and closes it at once: only its arrow opens it, or a key.
    decision: Literal["release", "reject", "question"]
    by: str = Field(min_length=1, pattern=r"\S")
    comment: str = ""
    despite: str = ""
    accepted: str = ""
    refused: str = ""


def form_answer(api: PrefectApi, job_id: str, key: str | None) -> FormAnswer | None:
    """Return the answer in the form saved under ``key``; ``None`` if it is not a person's decision.

    A run may be resumed without one: its state was set by hand, or the form is of an earlier version.
    """
    try:
        return FormAnswer.model_validate(api.request("GET", f"/flow_runs/{job_id}/input/{key}")) if key else None
    except ValidationError:
        return None
