"""The form of a wait, and the answer that a person gave in the Prefect UI. Nothing here imports Prefect."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flows.prefect.api import PrefectApi

LONGEST_TEXT: Final = 2_000
"""Most characters of a name or a comment."""


class FormAnswer(BaseModel):
    """A person's decision. Decision and name have no default, so a person must enter both."""

    model_config = ConfigDict(extra="forbid")

    # In Prefect 3.8 a click into the field opens the list and closes it at once. Only the arrow or a key opens it.
    decision: Literal["release", "reject"] = Field(title="Decision", description="Open the list with its arrow.")
    by: str = Field(
        title="Your name", description="Recorded with the decision.", min_length=1, max_length=LONGEST_TEXT,
        pattern=r"\S",
    )  # fmt: skip
    comment: str = Field(
        "", title="Comment", description="A release needs one if the report has stops or could not be made.",
        max_length=LONGEST_TEXT,
    )  # fmt: skip


def form_answer(api: PrefectApi, job_id: str, key: str | None) -> FormAnswer | None:
    """Return the answer to a form, saved under ``key``; ``None`` if there is no valid one.

    There is none if somebody resumed the run by setting its state by hand.
    """
    try:
        return FormAnswer.model_validate(api.request("GET", f"/flow_runs/{job_id}/input/{key}")) if key else None
    except ValidationError:
        return None
