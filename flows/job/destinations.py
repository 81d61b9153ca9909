"""Where data goes after a ``wait``: the services of the steps behind it, as a person who decides is told them."""

from __future__ import annotations

import itertools

from config import PipelineConfig, SendConfig
from tasks.shared.http.answer import place


def destinations(config: PipelineConfig, position: int) -> list[tuple[str, str]]:
    """The steps behind the wait at ``position`` (from 1) up to the next wait that send data somewhere, and where to.

    Addresses are without user, query and fragment, so without credentials.
    """
    services = config.services
    places = {
        "pseudonymizer": place(services.pseudonymizer.url or ""),
        "validation": place(services.validation.url or ""),
        "flattening": place(services.flattening.service_url or ""),
        "send": _destination(services.send),
    }
    behind = itertools.takewhile(lambda name: name != "wait", map(str, config.pipeline.enabled_steps[position:]))
    return [(name, places[name]) for name in behind]


def _destination(send: SendConfig) -> str:
    if send.send_as == "s3_upload":
        store = place(send.s3.endpoint) if send.s3.endpoint else f"the public service in {send.s3.region}"
        return f"bucket {send.s3.bucket} at {store} (s3_upload)"
    return f"{place(send.url or '')} ({send.send_as})"
