"""``deployments/automations.yaml``: automations that Prefect's server takes, and what they send."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

AUTOMATIONS: list[dict[str, Any]] = yaml.safe_load((ROOT / "deployments/automations.yaml").read_text())["automations"]


@pytest.mark.parametrize("automation", AUTOMATIONS, ids=lambda one: one["name"])
def test_prefects_server_takes_the_automation(automation: dict[str, Any]) -> None:
    from prefect.server.events.schemas.automations import AutomationCreate

    AutomationCreate.model_validate(automation)


def test_the_webhook_gets_json_with_name_state_and_reason_of_the_job() -> None:
    from prefect.server.utilities.user_templates import render_user_template

    run = SimpleNamespace(id=7, name="nightly", state=SimpleNamespace(name="Failed", message='send: error["x"]\nmore'))
    (action,) = AUTOMATIONS[0]["actions"]
    sent = asyncio.run(render_user_template(action["payload"], {"flow_run": run}))
    assert json.loads(sent) == {"text": 'nightly is Failed: send: error["x"]', "job": "7"}
