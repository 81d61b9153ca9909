"""An address that could never be reached is found before anything is kept (docs/deployment.md, "Notifications")."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.exceptions import PrefectHTTPStatusError

from deployments.notify import CALL, MAIL, SUBJECT, _mails, _save_block
from flows.engine.flow_runs import BEHIND
from flows.job.running.sweep import STILL_BEHIND
from tasks.shared.errors import InputError, TerminalError
from tasks.shared.report import Problem, StepReport

SECRET = "hush-hush"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "https://hooks.example.org/x",
        f"mailtos://me:{SECRET}@mail.example.org\nmore",
        pytest.param(f"mailtos://me:{SECRET}@mail:99999", marks=pytest.mark.slow),  # Apprise takes its time to begin
    ],
    ids=["empty", "no mail", "two lines", "no port"],
)
@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")  # in what Apprise imports
def test_no_mailbox_is_made_of_what_is_no_address_and_the_error_does_not_say_it(tmp_path: Path, address: str) -> None:
    file = tmp_path / "mail.url"
    file.write_text(address)
    with pytest.raises(InputError) as refused:
        _mails(file)
    assert refused.value.reference == "notify-address"
    assert SECRET not in refused.value.render()


@pytest.mark.slow
def test_a_server_that_refuses_the_block_quotes_it_and_the_error_does_not() -> None:
    request = httpx.Request("POST", "http://127.0.0.1/api/block_documents/")
    answer = httpx.Response(422, request=request, json={"request_body": {"data": {"url": f"https://x/{SECRET}"}}})

    class Refused:
        def save(self, name: str, *, overwrite: bool) -> None:
            error = httpx.HTTPStatusError("422", request=request, response=answer)
            raise PrefectHTTPStatusError.from_httpx_error(error)

    with pytest.raises(PrefectHTTPStatusError, match=SECRET):
        Refused().save("sluice-notify", overwrite=True)
    with pytest.raises(TerminalError) as refused:
        _save_block(Refused(), "sluice-notify")
    assert refused.value.reference == "prefect-refused"
    assert refused.value.__suppress_context__
    assert SECRET not in refused.value.render()


NOW, BEFORE = uuid4(), uuid4()
"""Ids of the state that a run has, and of the one before."""

STEPS = {
    "job.steps": "local_import,validation,send",
    "job.step.1": StepReport(position=1, name="local_import", state="completed").model_dump_json(),
    "job.step.2": StepReport(position=2, name="validation", state="completed").model_dump_json(),
}


def sent(kind: str, name: str, event: Any, labels: dict[str, Any], *, announced: str | None = None) -> dict[str, Any]:
    """Return what Prefect's server calls the webhook with. Raises ``ActionFailed`` where it makes no call."""
    from prefect.server.events.actions import CallWebhook, SendNotification
    from prefect.server.schemas.responses import FlowRunResponse

    run = uuid4()
    state = {"type": kind, "name": name, "message": "why\nmore", "id": str(NOW)}
    data = {"id": run, "flow_id": uuid4(), "name": "nightly", "labels": labels, "state": state, "state_id": NOW}
    resource: dict[str, Any] = {"prefect.resource.id": f"prefect.flow-run.{run}"}
    if announced is not None:  # Prefect shows a template the state of the event, which may have passed
        resource |= {"prefect.state-name": announced, "prefect.state-type": "PAUSED", "prefect.state-message": "then"}
        resource |= {"prefect.state-timestamp": "2026-01-01T00:00:00+00:00"}
    call = CallWebhook(block_document_id=uuid4(), payload=CALL)
    mail = SendNotification(block_document_id=uuid4(), subject=SUBJECT, body=MAIL)
    action: Any = SimpleNamespace(id=uuid4())
    context = {"event": event, "flow_run": call.instantiate_object(FlowRunResponse, data, action, resource)}

    async def fixed_context(*_: Any) -> dict[str, Any]:
        return context

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CallWebhook, "_template_context", fixed_context)
        patched.setattr(SendNotification, "_template_context", fixed_context)
        subject, body = asyncio.run(mail.render(action))
        (text,) = asyncio.run(call._render([CALL], action))
    made: dict[str, Any] = json.loads(text)
    assert body == made["text"]
    assert subject in body
    return made


def changed(to: Any, name: str = "Failed") -> Any:
    return SimpleNamespace(id=to, event=f"prefect.flow-run.{name}")


@pytest.mark.slow
def test_a_failure_names_the_step_that_caused_it_and_not_the_first_open_one() -> None:
    """A closed gate ends a job whose validation is complete: it is not the step behind it."""
    error = Problem(reference="validation-findings", message='closed, "step":"send"', step="validation")
    labels = STEPS | {"job.error": error.model_dump_json()}
    assert sent("FAILED", "Failed", changed(NOW), labels)["step"] == "validation"
    beside = error.model_copy(update={"step": None})
    assert sent("FAILED", "Failed", changed(NOW), STEPS | {"job.error": beside.model_dump_json()})["step"] == ""
    assert sent("CRASHED", "Stopped", changed(NOW, "Stopped"), labels)["step"] == "send"
    assert sent("SCHEDULED", "Late", changed(NOW, "Late"), {})["step"] == ""


@pytest.mark.slow
def test_a_state_that_has_passed_is_not_told_and_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    from prefect.server.events.actions import ActionFailed
    from prefect.server.utilities import user_templates

    from flows.engine.server.app import is_worth_logging

    assert user_templates.logger.name == "prefect.server.utilities.user_templates"
    user_templates.logger.addHandler(caplog.handler)
    with pytest.raises(ActionFailed, match="this_state_has_passed"):
        sent("RUNNING", "Running", changed(BEFORE, "Paused"), STEPS, announced="Paused")
    with pytest.raises(ActionFailed, match="this_state_has_passed"):  # failed again meanwhile: that is told by itself
        sent("FAILED", "Failed", changed(BEFORE), STEPS, announced="Failed")
    told = SimpleNamespace(id=uuid4(), event=STILL_BEHIND)
    assert sent("SCHEDULED", BEHIND, told, {})["state"] == "Late"
    with pytest.raises(ActionFailed, match="this_state_has_passed"):
        sent("RUNNING", "Running", told, STEPS)
    user_templates.logger.removeHandler(caplog.handler)
    assert caplog.records, "Prefect logs a traceback of each"
    assert not any(map(is_worth_logging, caplog.records))
    assert is_worth_logging(logging.LogRecord("", logging.WARNING, "", 1, "", (), (KeyError, KeyError("x"), None)))
