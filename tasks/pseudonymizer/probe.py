"""The made-up resource that goes to the pseudonymization service before anything else (document 3 §4).

Its values are the same in every probe, so a trust centre keeps one pseudonym for each of them. With an anonymization
file another request goes before it, with rules that nobody can read: only a service that reads them refuses. Who
refuses both is asked without the file: what refuses that, too, is another service.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from config import PipelineConfig
from tasks.pseudonymizer.agreement import Agreement, WrongAnswerError
from tasks.pseudonymizer.answer_check import outline_of
from tasks.pseudonymizer.client import HEADERS, OLDEST, body, endpoint, hide
from tasks.pseudonymizer.residual_identifiers import values_at
from tasks.pseudonymizer.rules import KEY, AnonymizationRules, usable_rules
from tasks.shared.errors import SluiceError
from tasks.shared.http.answer import Answer
from tasks.shared.service import ProbeRequest, Service, SyntheticProbe, WrongServiceError

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

    refused: list[Answer] = []

    def wrong(answer: Answer) -> str | None:
        if rules is not None and answer.status == _REFUSED:
            refused.append(answer)
            return None
        return _wrong(answer, rules)

    def without_rules(answer: Answer) -> SluiceError | str:
        return f"answered {_REFUSED}" if answer.status == _REFUSED else _refused_rules(refused[0])

    made_up = body(rules.content if rules is not None else None, BUNDLE)
    yield ProbeRequest("POST", endpoint(service.url), wrong, made_up, HEADERS, frozenset({_REFUSED}))
    if refused:
        yield ProbeRequest("POST", endpoint(service.url), without_rules, BUNDLE, HEADERS, frozenset({_REFUSED}))


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
        f"pseudonymizer: the service refuses a made-up resource ({_REFUSED}) when the request contains the "
        "anonymization file, and accepts it otherwise",
        context=KEY,
        hint="find the rule that the service cannot use in the log of the service",
        operation="probe",
        status=_REFUSED,
    ).made_from(answer)


def _wrong(answer: Answer, rules: AnonymizationRules | None) -> str | None:
    if answer.status == _REFUSED:
        return f"answered {_REFUSED}"
    given = outline_of(BUNDLE, sent=True)
    agreement = Agreement(rules.removes, rules.removed_types) if rules is not None else Agreement()
    try:
        received, _ = agreement.check(answer, given)
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
