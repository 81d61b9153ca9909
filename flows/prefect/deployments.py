"""Start a job through a deployment of the flow, for ``pipeline start --detach``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.prefect.api import FLOW_NAME, TAG, Json, PrefectApi
from tasks.shared.errors import InputError

DEPLOYMENT = "sluice"
"""The deployment that runs detached jobs, when there are several."""


def choose_deployment(api: PrefectApi) -> str:
    """Return the id of the deployment that runs detached jobs: the only one, or the one named ``DEPLOYMENT``.

    Raises:
        InputError: there is none, or none of several has that name.
    """
    body = {"flows": {"name": {"any_": [FLOW_NAME]}}, "deployments": {"tags": {"all_": [TAG]}}, "limit": 50}
    found: list[Json] = api.request("POST", "/deployments/filter", body) or []
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
    """Start a run through a deployment and return its job id.

    ``None`` is sent as an empty text, as the deployment's form does: not given, even if the deployment has a default.
    """
    given = {name: "" if value is None else value for name, value in parameters.items()}
    return api.created(f"/deployments/{deployment_id}/create_flow_run", {"parameters": given})
