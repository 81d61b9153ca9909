"""``$de-identify``: one resource to the pseudonymization service and back (document 3 §4)."""

from __future__ import annotations

import base64
import logging
import time
from typing import Final

from tasks.pseudonymizer.rules import KEY, AnonymizationRules
from tasks.pseudonymizer.slots import Slots
from tasks.shared.blanked import SECRETS
from tasks.shared.errors import ServiceError
from tasks.shared.http.answer import Answer
from tasks.shared.http.client import ServiceClient

OPERATION: Final = "$de-identify"
OLDEST: Final = "2.34.0"
"""The first version of the service that reads ``config``."""

_HEADERS: Final = {"Content-Type": "application/fhir+json", "Accept": "application/fhir+json"}
_MIB: Final = 1 << 20
_LEAST_ANSWER: Final = 64 * _MIB
_UNPARSEABLE: Final = b"fhirPathRules: [\n"
_SLOW: Final = 0.004  # seconds
_NOBODY: Final = b'{"resourceType":"Patient","id":"sluice-probe","active":false}'

log = logging.getLogger("sluice.pseudonymizer")


class Deidentify:
    """The calls to the service at ``url`` (its root, without ``/fhir``), with ``rules`` or with the service's own.

    Thread-safe; at most ``slots`` requests are under way at once, and whoever comes then waits. So more threads than
    slots keep the service busy while they look at answers, and the time spent waiting is not that of a request.
    """

    def __init__(self, client: ServiceClient, url: str, rules: AnonymizationRules | None, *, slots: int) -> None:
        self._client = client
        self._slots = Slots(slots)
        self._url = f"{url.rstrip('/')}/fhir/$de-identify"
        self._before, self._after = (b"", b"") if rules is None else _around(rules.content)
        self._sends_rules = rules is not None
        if rules is not None:
            for secret in (base64.b64encode(rules.content).decode(), *rules.keys):
                SECRETS.text(secret)

    def probe(self) -> None:
        """Find out whether the service reads the rules that come with a request, before it gets any data.

        One that does not would answer 200 under its own rules, and nothing would tell. Without rules of ours there is
        nothing to find out. Raises ``ServiceError`` (``pseudonymizer-too-old``), and what a request raises.
        """
        if not self._sends_rules:
            return
        before, after = _around(_UNPARSEABLE)
        answer = self._client.send(
            "POST",
            self._url,
            operation="probe",
            content=before + _NOBODY + after,
            headers=_HEADERS,
            accept={400},
        )
        if answer.status != 400:
            raise ServiceError(
                "pseudonymizer-too-old",
                f"pseudonymizer: the service ignores the anonymization file: it is older than {OLDEST}",
                context=KEY,
                hint=f"update the pseudonymization service to {OLDEST} or later, or leave the key out and give the "
                "service the rules itself",
                operation="probe",
                status=answer.status,
            )
        log.info("pseudonymizer: the service reads the anonymization file")

    def __call__(self, resource: bytes) -> Answer:
        """Send one resource. Raises what ``ServiceClient.send`` raises."""
        body = b"".join((self._before, resource, self._after)) if self._sends_rules else resource
        with self._slots:
            started = time.perf_counter()
            answer = self._client.send(
                "POST",
                self._url,
                operation=OPERATION,
                content=body,
                headers=_HEADERS,
                # A pretty-printed answer is larger than what was sent.
                max_answer_bytes=max(_LEAST_ANSWER, 4 * len(body)),
            )
        # Whoever got the slot sends first: this thread would else keep Python for itself while it reads the answer,
        # half a millisecond in which the service has nothing to do. Where a service answers at once it is Python that
        # is short, and every such change of threads costs some.
        if time.perf_counter() - started > _SLOW:
            time.sleep(0)
        return answer


def _around(config: bytes) -> tuple[bytes, bytes]:
    """What stands before and after the resource when ``config`` is sent with it."""
    before = (
        b'{"resourceType":"Parameters","parameter":[{"name":"config","valueAttachment":'
        b'{"contentType":"application/yaml","data":"%b"}},{"name":"resource","resource":'
    )
    return before % base64.b64encode(config), b"}]}"
