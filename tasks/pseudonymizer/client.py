"""``$de-identify``: one resource to the pseudonymization service and back, and the probe before (document 3 §4).

The values of the made-up resource are the same in every probe, so a trust centre keeps one pseudonym for each of them.
With an anonymization file another request goes before it, with rules that nobody can read: only a service that reads
them refuses.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from config import PipelineConfig
from tasks.pseudonymizer.agreement import Agreement, WrongAnswerError
from tasks.pseudonymizer.answer_check import outline_of
from tasks.pseudonymizer.residual_identifiers import values_at
from tasks.pseudonymizer.rules import KEY, AnonymizationRules, usable_rules
from tasks.shared.blanked import SECRETS
from tasks.shared.errors import SluiceError
from tasks.shared.http.answer import Answer
from tasks.shared.http.body import SLICE, Body, MemoryBody
from tasks.shared.http.client import ServiceClient
from tasks.shared.service import ProbeRequest, Service, SyntheticProbe, WrongServiceError

OPERATION: Final = "$de-identify"
OLDEST: Final = "2.34.0"
"""The first version of the service that reads ``config``."""

HEADERS: Final = {"Content-Type": "application/fhir+json", "Accept": "application/fhir+json"}
_MIB: Final = 1 << 20
_LEAST_ANSWER: Final = 64 * _MIB
_SLOW: Final = 0.004  # seconds


class Deidentify:
    """The calls to the service at ``url`` (its root, without ``/fhir``), with ``rules`` or with the service's own.

    Thread-safe; at most ``slots`` requests are under way at once, and whoever comes then waits. So more threads than
    slots keep the service busy while they look at answers, and the time spent waiting is not that of a request.
    """

    def __init__(self, client: ServiceClient, url: str, rules: AnonymizationRules | None, *, slots: int) -> None:
        self._client = client
        self._slots = Slots(slots)
        self._url = endpoint(url)
        self._before, self._after = _around(rules.content if rules is not None else None)
        hide(rules)

    def __call__(self, resource: bytes) -> Answer:
        """Send one resource. Raises what ``ServiceClient.send`` raises."""
        size = len(self._before) + len(resource) + len(self._after)
        body: bytes | Body = resource
        if self._before:
            parts = self._before, resource, self._after
            body = MemoryBody(*parts) if size > SLICE else b"".join(parts)
        with self._slots:
            started = time.perf_counter()
            answer = self._client.send(
                "POST",
                self._url,
                operation=OPERATION,
                content=body,
                headers=HEADERS,
                # A pretty-printed answer is larger than what was sent.
                max_answer_bytes=max(_LEAST_ANSWER, 4 * size),
                silence=math.inf,  # the time limit of the whole exchange is enough
            )
        # Whoever got the slot sends first: this thread would else keep Python for itself while it reads the answer,
        # half a millisecond in which the service has nothing to do. Where a service answers at once it is Python that
        # is short, and every such change of threads costs some.
        if time.perf_counter() - started > _SLOW:
            time.sleep(0)
        return answer


class Slots:
    """At most ``count`` threads are inside at once; the others wait, first come, first served. A context manager,
    thread-safe.

    ``threading.Semaphore`` lets whoever comes at the right moment overtake those who wait. Here the oldest line would
    wait for ever while later ones fill the window, until only that one is under way.

    The client's connections are no substitute: a call that waits to be repeated has none, and keeps its slot, so a
    service that is busy or away is not asked for other lines meanwhile.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        gate.acquire()

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()  # the slot goes on to the next one, it is never free in between
            else:
                self._free += 1


def endpoint(url: str | None) -> str:
    """Return the URL of the operation for the root URL of the service."""
    return f"{(url or '').rstrip('/')}/fhir/$de-identify"


def hide(rules: AnonymizationRules | None) -> None:
    """Let what is secret in the rules stand in no answer that is kept."""
    if rules is not None:
        for secret in (base64.b64encode(rules.content).decode(), *rules.keys):
            SECRETS.text(secret)


def body(config: bytes | None, resource: bytes) -> bytes:
    """Build a request with the resource, and with the anonymization file ``config`` if there is one."""
    before, after = _around(config)
    return before + resource + after


def _around(config: bytes | None) -> tuple[bytes, bytes]:
    """Return the bytes before and after the resource in a request."""
    if config is None:
        return b"", b""
    before = (
        b'{"resourceType":"Parameters","parameter":[{"name":"config","valueAttachment":'
        b'{"contentType":"application/yaml","data":"%b"}},{"name":"resource","resource":'
    )
    return before % base64.b64encode(config), b"}]}"


_REFUSED: Final = 400
_UNREADABLE_RULES: Final = b"fhirPathRules: [\n"

PATIENT: Final = {
    "resourceType": "Patient",
    "id": "sluice-probe-patient",
    "text": {"status": "generated", "div": '<div xmlns="http://www.w3.org/1999/xhtml">Probe, Mira, Probeweg 1</div>'},
    "identifier": [{"system": "https://example.org/sluice/probe", "value": "sluice-probe-4711"}],
    "name": [{"use": "official", "family": "Probe", "given": ["Mira"]}],
    "telecom": [{"system": "phone", "value": "+49 30 0000000"}],
    "birthDate": "1970-01-31",
    "address": [{"line": ["Probeweg 1"], "city": "Probestadt", "postalCode": "00000"}],
}
"""Nobody."""

OBSERVATION: Final = {
    "resourceType": "Observation",
    "id": "sluice-probe-observation",
    "status": "final",
    "code": {"text": "sluice probe"},
    "subject": {"reference": "Patient/sluice-probe-patient"},
    "effectiveDateTime": "2020-02-29",
}
BUNDLE: Final = json.dumps(
    {
        "resourceType": "Bundle",
        "id": "sluice-probe",
        "type": "collection",
        "entry": [
            {"fullUrl": f"https://example.org/sluice/probe/{one['resourceType']}/{one['id']}", "resource": one}
            for one in (PATIENT, OBSERVATION)
        ],
    }
).encode()
"""The made-up resource, as it is sent."""

_IDENTIFYING: Final = (
    "id", "identifier.value", "name.family", "name.given", "telecom.value", "address.line", "address.city",
    "address.postalCode", "birthDate", "subject.reference",
)  # fmt: skip


def _exchanges(service: Service, config: PipelineConfig) -> Iterator[ProbeRequest]:
    path = config.services.pseudonymizer.anonymization_config
    rules = usable_rules(path)
    if path is not None and rules is None:
        return  # a finding, and the step's own error
    if rules is not None:
        hide(rules)
        nobody = body(_UNREADABLE_RULES, json.dumps(PATIENT).encode())
        yield ProbeRequest("POST", endpoint(service.url), _reads_rules, nobody, HEADERS, frozenset({_REFUSED}))

    made_up = body(rules.content if rules is not None else None, BUNDLE)
    check = functools.partial(_wrong, rules=rules)
    yield ProbeRequest("POST", endpoint(service.url), check, made_up, HEADERS, frozenset({_REFUSED}))


PROBE: Final = SyntheticProbe("a pseudonymization service", _exchanges)


def service(config: PipelineConfig) -> Service:
    """``services.pseudonymizer``."""
    return Service("pseudonymizer", config.services.pseudonymizer.url, config.services.pseudonymizer.auth, PROBE)


def _reads_rules(answer: Answer) -> SluiceError | None:
    """Return an error if the service ignored the rules, because it would answer 200 with its own rules."""
    if answer.status == _REFUSED:
        return None
    return WrongServiceError(
        "pseudonymizer-too-old",
        f"pseudonymizer: the service ignores the anonymization file: it is older than {OLDEST}",
        context=KEY,
        hint=f"update the pseudonymization service to {OLDEST} or later, or leave the key out and give the "
        "service the rules itself",
        operation="probe",
        status=answer.status,
    )


def _refused_rules(answer: Answer) -> SluiceError:
    return WrongServiceError(
        "rules-refused",
        f"pseudonymizer: the service refuses a made-up resource ({_REFUSED}) with the anonymization file",
        context=KEY,
        hint="find the rule that the service cannot use in the log of the service",
        operation="probe",
        status=_REFUSED,
    ).made_from(answer)


def _wrong(answer: Answer, rules: AnonymizationRules | None) -> SluiceError | str | None:
    if answer.status == _REFUSED:
        return f"answered {_REFUSED}" if rules is None else _refused_rules(answer)
    given = outline_of(BUNDLE, sent=True)
    try:
        received, _ = Agreement(rules is not None and rules.removes).check(answer, given)
    except WrongAnswerError as wrong:
        return f"gave {wrong}"
    entries = msgspec.json.decode(received.text).get("entry") or []
    if len(entries) == given.entries and all(map(_unchanged, entries, (PATIENT, OBSERVATION))):
        return "did not pseudonymize it: names, identifiers, addresses, dates and ids came back unchanged"
    return None


def _unchanged(entry: Any, sent: Any) -> bool:
    """Return whether the texts are unchanged; additional elements do not matter."""
    return all(_values(entry["resource"], place) == _values(sent, place) for place in _IDENTIFYING)


def _values(resource: Any, place: str) -> list[Any]:
    return [one for one in values_at(resource, place.split(".")) if one is not None]
