"""What somebody answered in the form of a wait, in the Prefect UI or through its API. Without importing Prefect."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flows.engine.api import PrefectApi


class FormAnswer(BaseModel):
    """A decision of a person. Nothing is preset: who sends it has decided, and said who it was.

    In every language of the form the answers are these: what a field is called there comes with the form.
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
    """What somebody answered in the form saved under ``key``; ``None`` when that is no decision of a person.

    A run may go on without one: set to another state by hand, or resumed through the form of an earlier version.
    """
    try:
        return FormAnswer.model_validate(api.request("GET", f"/flow_runs/{job_id}/input/{key}")) if key else None
    except ValidationError:
        return None
