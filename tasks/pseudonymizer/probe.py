"""Test the pseudonymization service with a synthetic Bundle before the first real data (docs/services.md).

The values are the same in every probe, so a trust centre keeps one pseudonym for each of them. The Bundle is sent once,
then several times at once, and again when the step ends. All answers must have the same ids, references and dates: this
finds keys that change when the service starts, and replicas with different keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from config import PipelineConfig
from tasks.pseudonymizer.rules import KEY, read_rules
from tasks.pseudonymizer.service import OPERATION, Deidentify, endpoint
from tasks.shared.errors import ServiceBusyError, ServiceError, SluiceError
from tasks.shared.fhir.resource import ID, list_of, object_of, parse_json
from tasks.shared.http.answer import Answer, issues
from tasks.shared.service import PATIENCE, Found, ProbeWarning, Service, WrongServiceError

OLDEST: Final = "2.34.0"
"""The first version of the service that reads ``config``."""

_UNREADABLE_RULES: Final = b"fhirPathRules: [\n"
_HOST: Final = "https://fhir-probe.example.org/fhir"
_V2_0203: Final = "http://terminology.hl7.org/CodeSystem/v2-0203"
_DAY: Final = "2020-02-29"
_NOTE: Final = "sluice probe: seen by Mira Probe"


def _identifier(value: str, code: str) -> dict[str, Any]:
    kind = {"coding": [{"system": _V2_0203, "code": code}]}
    return {"type": kind, "system": "https://example.org/sluice", "value": value}


PATIENT: Final[dict[str, Any]] = {
    "resourceType": "Patient",
    "id": "sluice-probe-patient",
    "text": {"status": "generated", "div": '<div xmlns="http://www.w3.org/1999/xhtml">Probe, Mira, Probeweg 1</div>'},
    "identifier": [
        _identifier("sluice-probe-4711", "MR"),
        _identifier("sluice-probe-4712", "VN"),
        {"system": "https://example.org/sluice/other", "value": "sluice-probe-4713"},
    ],
    "name": [{"use": "official", "family": "Probe", "given": ["Mira"]}],
    "telecom": [{"system": "phone", "value": "+49 30 0000000"}],
    "birthDate": "1970-01-31",
    "address": [{"line": ["Probeweg 1"], "city": "Probestadt", "postalCode": "00000"}],
}
"""A synthetic patient."""

OBSERVATION: Final[dict[str, Any]] = {
    "resourceType": "Observation",
    "id": "sluice-probe-observation",
    "status": "final",
    "code": {"text": "sluice probe"},
    "subject": {"reference": "Patient/sluice-probe-patient"},
    "focus": [{"reference": f"{_HOST}/Patient/sluice-probe-patient"}],
    "effectiveDateTime": _DAY,
    "note": [{"text": _NOTE}],
}


def _bundle(*, absolute: bool) -> dict[str, Any]:
    """Return the synthetic Bundle, with ``fullUrl`` and an absolute reference or without."""
    entries = []
    for one in (PATIENT, OBSERVATION):
        place = f"{one['resourceType']}/{one['id']}"
        resource = one if absolute else {key: value for key, value in one.items() if key != "focus"}
        url = {"fullUrl": f"{_HOST}/{place}"} if absolute else {}
        entries.append(url | {"resource": resource, "request": {"method": "PUT", "url": place}})
    return {"resourceType": "Bundle", "id": "sluice-probe", "type": "transaction", "entry": entries}


BUNDLE: Final = _bundle(absolute=True)
_TEXT: Final = json.dumps(BUNDLE).encode()
_RELATIVE: Final = json.dumps(_bundle(absolute=False)).encode()

_CHANGED: Final = "the service gave a synthetic resource different ids, references or dates than before"
_SET_KEYS: Final = "set the keys in the rules: otherwise they change with each start and differ between replicas"
_ABSOLUTE: Final = "absolute references (http://host/Patient/…) on a host with a hyphen or an underscore"
_NO_RULES: Final = frozenset({400, 404, 405, 406, 415, 422, 501})


@dataclass(frozen=True)
class MadeUp:
    """The result of the test with the Bundle ``text``. ``digest`` is ``ProbeAnswer.digest``, one of the terms of the
    step."""

    digest: str
    warnings: tuple[str, ...] = ()
    text: bytes = field(default=_TEXT, repr=False)


@dataclass(frozen=True)
class ProbeAnswer:
    """The judged parts of an answer: both resources, and the type of the Bundle."""

    patient: dict[str, Any] = field(repr=False)
    observation: dict[str, Any] = field(repr=False)
    bundle_type: Any = None

    @property
    def subject(self) -> str:
        """Return the reference to the patient; blank without one."""
        return str(object_of(self.observation.get("subject")).get("reference") or "")

    @property
    def focus(self) -> str:
        """Return the absolute reference to the patient; blank without one."""
        focus = [*list_of(self.observation.get("focus")), None]
        return str(object_of(focus[0]).get("reference") or "")

    @property
    def digest(self) -> str:
        """Return a digest of ids, references and dates: what must be equal in two answers."""
        dates = self.patient.get("birthDate"), self.observation.get("effectiveDateTime")
        stable = [self.patient.get("id"), self.observation.get("id"), self.subject, self.focus, *dates]
        return hashlib.sha256(json.dumps(stable).encode()).hexdigest()[:32]


def begin(call: Deidentify) -> MadeUp:
    """Send the synthetic Bundle once, then ``max_concurrent_requests`` times at once (at least twice).

    Raises ``WrongServiceError`` for the first row of the table in docs/services.md that applies, and what
    ``ServiceClient.send`` raises.
    """
    if call.rules is not None:
        _require_rules_to_be_read(call)
    text, warnings = _TEXT, list[str]()
    try:
        first = ask(call)
    except WrongServiceError as error:
        # Rules that use the type in a reference as its domain find none in an absolute reference to such a host.
        if error.answered not in (422, 500) or not still_works(call):
            raise
        text, first = _RELATIVE, ask(call, _RELATIVE)
        warnings.append(f"the service refuses resources with {_ABSOLUTE}")
    warnings += _judge(first)
    count = max(2, call.config.services.pseudonymizer.max_concurrent_requests)
    with ThreadPoolExecutor(count) as pool:
        others = [*pool.map(lambda _: ask(call, text).digest, range(count))]
    if any(other != first.digest for other in others):
        raise _error("pseudonyms-change", _CHANGED, _SET_KEYS)
    return MadeUp(first.digest, tuple(warnings), text)


def changed(config: PipelineConfig) -> ServiceError:
    """Return the error for an answer at the end of the step that differs from the one at its beginning."""
    return ServiceError(
        "pseudonyms-change", f"pseudonymizer: {_CHANGED}", context=f"services.pseudonymizer.url: {endpoint(config)}",
        hint=f"the files of this step are done again when the job is continued; {_SET_KEYS}", operation=OPERATION,
    )  # fmt: skip


def still_works(call: Deidentify) -> bool:
    """Return whether the service pseudonymizes the synthetic Bundle: then a resource that it refuses is at fault."""
    try:
        ask(call, _RELATIVE)
    except SluiceError:
        return False
    return True


@dataclass(frozen=True)
class PseudonymizerProbe:
    """The probe for ``plan`` and ``start``. The step calls ``begin`` itself, so this one does not ``prove``."""

    proves = False

    def find_problems(self, service: Service, config: PipelineConfig, **more: Any) -> Iterator[Found]:
        """Yield errors and warnings about the service; nothing for an anonymization file that has errors itself."""
        path = config.services.pseudonymizer.anonymization_config
        try:
            rules = read_rules(path) if path is not None else None
        except SluiceError:
            return
        try:
            with service.client(config, within=PATIENCE, **more) as client:
                yield from map(ProbeWarning, begin(Deidentify(client, config, rules)).warnings)
        except SluiceError as error:
            yield error


def service(config: PipelineConfig) -> Service:
    """Return ``services.pseudonymizer``."""
    settings = config.services.pseudonymizer
    return Service("pseudonymizer", settings.url, settings.auth, settings.timeout.total_seconds(), PseudonymizerProbe())


def _require_rules_to_be_read(call: Deidentify) -> None:
    """Send rules that are not YAML: a service that answers 200 ignores rules."""
    answer = call.with_rules(_UNREADABLE_RULES, json.dumps(PATIENT).encode(), _NO_RULES)
    if answer.status == 200:
        hint = f"update the pseudonymization service to {OLDEST} or later, or leave the key out and give the service"
        what = f"the service ignores the anonymization file: it is older than {OLDEST}"
        raise _error("pseudonymizer-too-old", what, f"{hint} the rules itself", KEY)
    if answer.status != 400:
        raise _wrong_service(call, f"answered {answer.status}")


def ask(call: Deidentify, text: bytes = _TEXT) -> ProbeAnswer:
    """Send the synthetic Bundle once. Raises ``WrongServiceError`` for a wrong answer, and what a call raises."""
    try:
        answer = call(text)
    except (ServiceError, ServiceBusyError) as error:
        given = error.answer
        if given is not None and _refuses_rules(given):
            raise _error(
                "rules-refused",
                f"the service cannot apply its rules to a synthetic resource (status {given.status}, issue codes: "
                f"{', '.join(given.issue_codes()) or 'none'})",
                "does the domain exist in the pseudonym service (Vfps, gPAS)? Is the anonymization file valid? Is this "
                "the URL of the pseudonymization service? See its log",
                KEY if call.rules is not None else "services.pseudonymizer.url",
            ).made_from(given) from None
        if given is not None and given.status in (404, 405, 406, 501):
            raise _wrong_service(call, f"answered {given.status}") from None
        raise
    bundle = object_of(parse_json(answer.body) if answer.says_json else None)
    resources = [object_of(object_of(entry).get("resource")) for entry in list_of(bundle.get("entry"))]
    types = [bundle.get("resourceType"), *(resource.get("resourceType") for resource in resources)]
    if types != ["Bundle", "Patient", "Observation"]:
        raise _wrong_service(call, "did not give back a Bundle of the two resources in their order")
    return ProbeAnswer(resources[0], resources[1], bundle.get("type"))


def _refuses_rules(answer: Answer) -> bool:
    fatal = any(severity == "fatal" for severity, _ in issues(answer.body))
    return answer.status in (400, 422) or (answer.status == 500 and fatal)


def _judge(answer: ProbeAnswer) -> Iterator[str]:
    """Yield warnings; raise ``WrongServiceError`` for the first row of the table that applies."""
    patient, observation = answer.patient, answer.observation
    if _unchanged(answer):
        hint = "which rules does the service use? see services.pseudonymizer.anonymization_config"
        what = "the service did not pseudonymize a synthetic resource"
        raise _error("not-pseudonymized", f"{what}: names, identifiers, dates and ids came back unchanged", hint)
    ids = [patient.get("id"), observation.get("id")]
    if not any(ids) and not answer.subject and not observation.get("code"):
        hint = "these are the fall-back rules of a deployed service: give services.pseudonymizer.anonymization_config"
        raise _error("everything-removed", "the service removed everything from a synthetic resource", hint)
    if any(one is not None and ID.fullmatch(str(one)) is None for one in ids):
        hint = "no FHIR server takes them: check the method or truncateToMaxLength of the rule for ids"
        what = "the service makes ids that are no FHIR ids (more than 64, or other, characters)"
        raise _error("ids-invalid", what, hint)
    if answer.subject != f"Patient/{patient.get('id')}" and answer.subject:
        hint = "ids and references need the same method, domain and truncation in the rules"
        raise _error("references-broken", "references no longer lead to the ids that the service makes", hint)
    if answer.focus and "/" not in answer.focus:
        yield (
            "the service removes the type from absolute references (http://host/Patient/…) whose host has a hyphen or "
            "an underscore"
        )
    if answer.bundle_type is None:
        yield "the rules remove Bundle.type; it is put back as it was"


def _unchanged(answer: ProbeAnswer) -> bool:
    names = ("id", "name", "identifier", "telecom", "address", "birthDate", "text")
    same_patient = all(answer.patient.get(name) == PATIENT[name] for name in names)
    others = ("id", "subject", "effectiveDateTime", "note")
    return same_patient and all(answer.observation.get(name) == OBSERVATION[name] for name in others)


def _wrong_service(call: Deidentify, what: str) -> WrongServiceError:
    return _error(
        "wrong-service",
        f"this is not a pseudonymization service: tested with a synthetic resource, it {what}",
        "check this URL, and those of the other services: two may be swapped; no data was sent",
        f"services.pseudonymizer.url: POST {call.url}",
    )


def _error(reference: str, what: str, hint: str, context: str = "services.pseudonymizer") -> WrongServiceError:
    return WrongServiceError(reference, f"pseudonymizer: {what}", context=context, hint=hint, operation="test request")
