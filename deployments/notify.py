"""Set up webhook calls and mails for jobs that need a person: ``python -m deployments.notify --webhook FILE --mail
FILE``.

Run where ``PREFECT_API_URL`` names the server; a second run replaces the first. Each file holds one line, the address,
which is a secret: of a webhook, or for mail one of Apprise's, ``mailtos://…`` (docs/deployment.md, "Notifications").
The automation is stored in Prefect's server, which then sends calls and mails by itself.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.engine.api import FLOW_NAME, PrefectApi
from flows.engine.api_address import use
from flows.engine.reached import chosen_api
from flows.job.running.sweep import STILL_BEHIND
from tasks.shared.errors import InputError, SluiceError, TerminalError

AUTOMATION = "sluice-needs-a-person"

HOOK = "sluice-notify"
MAILBOX = "sluice-mail"
"""The blocks in which Prefect keeps the addresses, encrypted."""

STATES = ("Failed", "Crashed", "Stopped", "Interrupted", "Paused", "Suspended", "Late")
"""Names of states that are told. A closed gate is Failed; Late is a run that nobody took up an hour after its time, or
that waits for another one of its deployment since then: a worker tells of those (``flows/job/running/sweep.py``).
"""

_WORDS = (
    """\
{%- set behind = flow_run.state.name == 'AwaitingConcurrencySlot' -%}
{%- if flow_run.state_id != event.id and not (behind and event.event == '"""
    + STILL_BEHIND
    + """') -%}
{{ this_state_has_passed() }}
{%- endif -%}
{%- set found = namespace(step='') -%}
{%- set error = (flow_run.labels['job.error'] or '') | string -%}
{%- for name in (flow_run.labels['job.steps'] or '').split(',') -%}
{%- set label = (flow_run.labels['job.step.' ~ loop.index] or '') | string -%}
{%- set its = ('"step":"' ~ name ~ '"') in error if flow_run.state.name == 'Failed' else '"completed"' not in label -%}
{%- if not found.step and its %}{% set found.step = name %}{% endif -%}
{%- endfor -%}
{%- set state = 'Late' if behind else flow_run.state.name -%}
{%- set told = (flow_run.state.message or '').split('\\n')[0] -%}
{%- set late = 'it waits for another run of its deployment to end' if behind else 'no worker has taken it up' -%}
{%- set reason = late if state == 'Late' else told -%}
{%- set at = ' at ' ~ found.step if found.step else '' -%}
{%- set text = flow_run.name ~ ' is ' ~ state ~ at ~ (': ' ~ reason if reason else '') -%}
{%- set text = text ~ ' (job ' ~ flow_run.id ~ ')' -%}
"""
)
"""The text of both ways: the first line of a state's message, which names steps, references and counts, no data.

Prefect has no condition for an action. An undefined function ends one whose state is no longer the run's, and the event
``prefect.automation.action.failed`` gives its name as the reason. The run itself has the current ``state_id``, which is
the id of the event that announced it; ``state`` is the state of the event.
"""

CALL = _WORDS + (
    '{"text": {{ text | tojson }}, "job": {{ flow_run.id | string | tojson }}, "state": {{ state | tojson }},'
    ' "step": {{ found.step | tojson }}, "reason": {{ reason | tojson }}}'
)
SUBJECT = _WORDS + "{{ flow_run.name ~ ' is ' ~ state ~ at }}"
MAIL = _WORDS + "{{ text }}"


def main(argv: Sequence[str] | None = None) -> int:
    """Create the automation; return 0 on success."""
    parser = argparse.ArgumentParser(
        prog="deployments.notify", description="Notify a webhook, a mailbox or both when a job needs a person."
    )
    parser.add_argument("--webhook", type=Path, metavar="FILE", help="file with the address of a webhook")
    parser.add_argument("--mail", type=Path, metavar="FILE", help="file with a mailto:// or mailtos:// address")
    args = parser.parse_args(argv)
    if args.webhook is None and args.mail is None:
        parser.error("name at least one of --webhook and --mail")
    jobs_dir = Path(os.environ.get("APP_JOBS_DIR") or "./jobs")
    try:
        address = chosen_api(jobs_dir)
        if address is None:
            raise InputError("no-prefect-api", "no Prefect API is named", hint="set PREFECT_API_URL")
        use(address, jobs_dir)
        with PrefectApi(address, told=True) as api:
            actions = [*_calls(args.webhook), *_mails(args.mail)]
            _replace(api, automation(actions))
    except SluiceError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_code
    sys.stdout.write(f"automation {AUTOMATION} tells of: {', '.join(STATES)}\n")
    return 0


def automation(actions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the automation that Prefect's server stores: its trigger and its actions."""
    return {
        "name": AUTOMATION,
        "description": "A job failed, was cut off, waits for a person, or did not begin.",
        "enabled": True,
        "trigger": {
            "type": "event",
            "posture": "Reactive",
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "match_related": {"prefect.resource.role": "flow", "prefect.resource.name": FLOW_NAME},
            "expect": [*(f"prefect.flow-run.{name}" for name in STATES), STILL_BEHIND],
            "for_each": ["prefect.resource.id"],
            "threshold": 1,
            "within": 0,
        },
        "actions": list(actions),
    }


def _calls(file: Path | None) -> list[dict[str, Any]]:
    if file is None:
        return []
    from prefect.blocks.webhook import Webhook

    hook = Webhook(url=_address(file, "https://", "http://"), headers={"Content-Type": "application/json"})
    return [{"type": "call-webhook", "block_document_id": _save_block(hook, HOOK), "payload": CALL}]


def _mails(file: Path | None) -> list[dict[str, Any]]:
    if file is None:
        return []
    address = _address(file, "mailtos://", "mailto://")
    from apprise import Apprise

    if not Apprise().add(address.get_secret_value()):  # Prefect would keep it, and no mail would ever be sent
        raise InputError(
            "notify-address", "Apprise cannot read the address", context=str(file),
            hint="mailtos://user:password@host:port?from=…&to=…; special signs are written as %40 and the like",
        )  # fmt: skip
    # Of Prefect's blocks that every server has, this one hands an address that is none of its own on to Apprise, which
    # sends mail. Prefect's block for mail is a service on the internet.
    from prefect.blocks.notifications import SlackWebhook

    block = _save_block(SlackWebhook(url=address), MAILBOX)
    return [{"type": "send-notification", "block_document_id": block, "subject": SUBJECT, "body": MAIL}]


def _save_block(block: Any, name: str) -> str:
    """Save a block in Prefect and return its id."""
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        return str(block.save(name, overwrite=True))
    except PrefectHTTPStatusError as error:  # its text quotes what was refused, the address in it
        raise TerminalError(
            "prefect-refused", f"the Prefect API answered {error.response.status_code} to the block {name}",
            hint="is the server of the same version? Upgrade both, then run this again",
        ) from None  # fmt: skip


def _address(file: Path, *schemes: str) -> Any:
    from pydantic import SecretStr

    try:
        line = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("notify-address", f"the file with the address cannot be read ({error})") from None
    if not line.startswith(schemes) or len(line.split()) != 1:
        raise InputError(
            "notify-address", f"the file holds no address that begins with {' or '.join(schemes)}", context=str(file),
            hint="one line; a space or another special sign in a password is written as %20 and the like",
        )  # fmt: skip
    return SecretStr(line)


def _replace(api: PrefectApi, made: dict[str, Any]) -> None:
    known = [one for one in api.request("POST", "/automations/filter", {}) if one["name"] == AUTOMATION]
    api.created("/automations/", made)
    for one in known:
        api.request("DELETE", f"/automations/{one['id']}")


if __name__ == "__main__":
    sys.exit(main())
