"""The made-up resource goes first, and its answer says what the service will make of the data (document 3 §4).

Its values are the same in every probe, so a trust centre keeps one pseudonym for each of them. It goes alone first,
then several times at once, and again when the step ends: the ids, references and dates must come back equal, which
finds keys that change at a start of the service, and replicas with different keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from config import PipelineConfig
from tasks.pseudonymizer.rules import KEY, AnonymizationRules, read_rules
from tasks.pseudonymizer.service import HEADERS, OPERATION, Deidentify, body_of, endpoint
from tasks.shared.errors import ServiceError, SluiceError
from tasks.shared.fhir.resource import ID
from tasks.shared.files.named_file import file_findings
from tasks.shared.http.answer import Answer, issues
from tasks.shared.http.client import ServiceClient
from tasks.shared.http.errors import BusyError, RefusedError, answer_of
from tasks.shared.service import PATIENCE, Found, ProbeWarning, Service, WrongServiceError

OLDEST: Final = "2.34.0"
"""The first version of the service that reads ``config``."""

_UNREADABLE_RULES: Final = b"fhirPathRules: [\n"
_HOST: Final = "https://fhir-probe.example.org/fhir"
_V2_0203: Final = "http://terminology.hl7.org/CodeSystem/v2-0203"
_DAY: Final = "2020-02-29"
_NOTE: Final = "sluice probe: seen by Mira Probe"

PATIENT: Final[dict[str, Any]] = {
    "resourceType": "Patient",
    "id": "sluice-probe-patient",
    "text": {"status": "generated", "div": '<div xmlns="http://www.w3.org/1999/xhtml">Probe, Mira, Probeweg 1</div>'},
    "identifier": [
        {
            "type": {"coding": [{"system": _V2_0203, "code": code}]},
            "system": "https://example.org/sluice",
            "value": value,
        }
        for code, value in (("MR", "sluice-probe-4711"), ("VN", "sluice-probe-4712"))
    ]
    + [{"system": "https://example.org/sluice/other", "value": "sluice-probe-4713"}],
    "name": [{"use": "official", "family": "Probe", "given": ["Mira"]}],
    "telecom": [{"system": "phone", "value": "+49 30 0000000"}],
    "birthDate": "1970-01-31",
    "address": [{"line": ["Probeweg 1"], "city": "Probestadt", "postalCode": "00000"}],
}
"""Nobody."""

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
BUNDLE: Final[dict[str, Any]] = {
    "resourceType": "Bundle",
    "id": "sluice-probe",
    "type": "transaction",
    "entry": [
        {
            "fullUrl": f"{_HOST}/{one['resourceType']}/{one['id']}",
            "resource": one,
            "request": {"method": "PUT", "url": f"{one['resourceType']}/{one['id']}"},
        }
        for one in (PATIENT, OBSERVATION)
    ],
}
_TEXT: Final = json.dumps(BUNDLE).encode()

_CHANGED: Final = "the service gave a made-up resource other ids, references or dates than before"
_SET_KEYS: Final = "set the keys in the rules: a service without them makes its own at each start, each replica another"


@dataclass(frozen=True)
class MadeUp:
    """The answer to the made-up Bundle, as far as it must be the same each time: ``digest`` is one of the terms of the
    step. ``warnings`` say what works but may surprise."""

    digest: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProbeAnswer:
    """What is judged of an answer: both resources, and the type of the Bundle."""

    patient: dict[str, Any] = field(repr=False)
    observation: dict[str, Any] = field(repr=False)
    bundle_type: Any = None

    @property
    def subject(self) -> str:
        """Return the reference to the patient; blank without one."""
        return _reference(self.observation.get("subject"))

    @property
    def focus(self) -> str:
        """Return the absolute reference to the patient; blank without one."""
        focus = self.observation.get("focus")
        return _reference(focus[0]) if isinstance(focus, list) and focus else ""

    @property
    def stable(self) -> list[Any]:
        """Return ids, references and dates: what must be equal in two answers."""
        return [
            self.patient.get("id"), self.observation.get("id"), self.subject, self.focus,
            self.patient.get("birthDate"), self.observation.get("effectiveDateTime"),
        ]  # fmt: skip

    @property
    def digest(self) -> str:
        """Return a digest of what must be equal."""
        return hashlib.sha256(json.dumps(self.stable).encode()).hexdigest()[:32]


def begin(client: ServiceClient, config: PipelineConfig, rules: AnonymizationRules | None, at_once: int) -> MadeUp:
    """Send the made-up Bundle alone, then ``at_once`` times (at least twice) at the same time; return what came back.

    Raises ``WrongServiceError`` for the first row of document 3 §4 that fits, and what ``ServiceClient.send`` raises.
    """
    if rules is not None:
        _require_rules_to_be_read(client, config)
    call = Deidentify(client, endpoint(config), rules)
    first = _ask(client, config, call)
    warnings = tuple(_judge(first, config))
    count = max(2, at_once)
    with ThreadPoolExecutor(count) as pool:
        others = [*pool.map(lambda _: _ask(client, config, call), range(count))]
    if any(other.stable != first.stable for other in others):
        raise _error("pseudonyms-change", _CHANGED, _SET_KEYS)
    return MadeUp(first.digest, warnings)


def ends_as(client: ServiceClient, config: PipelineConfig, rules: AnonymizationRules | None, begun: MadeUp) -> bool:
    """Send it once more when the step ends; return whether the same came back as when it began."""
    return _ask(client, config, Deidentify(client, endpoint(config), rules)).digest == begun.digest


def changed(config: PipelineConfig) -> ServiceError:
    """Return the error of a step that ended with another answer than it began with."""
    return ServiceError(
        "pseudonyms-change", f"pseudonymizer: {_CHANGED}", context=f"services.pseudonymizer.url: {endpoint(config)}",
        hint=f"the files of this step are done again when the job is continued; {_SET_KEYS}", operation=OPERATION,
    )  # fmt: skip


def still_works(client: ServiceClient, config: PipelineConfig, rules: AnonymizationRules | None) -> bool:
    """Return whether the service still pseudonymizes the made-up Bundle: then a resource that it refuses is at
    fault."""
    try:
        _ask(client, config, Deidentify(client, endpoint(config), rules))
    except SluiceError:
        return False
    return True


@dataclass(frozen=True)
class PseudonymizerProbe:
    """The check of ``plan`` and ``start`` (``service.Probe``)."""

    proves = True

    def find_problems(self, service: Service, config: PipelineConfig, **more: Any) -> Iterator[Found]:
        """Yield errors and warnings about the service; nothing for an anonymization file that has errors itself."""
        settings = config.services.pseudonymizer
        doubts: list[str] = []
        if settings.anonymization_config is not None and [*file_findings("", settings.anonymization_config)]:
            return
        try:
            rules = read_rules(settings.anonymization_config) if settings.anonymization_config is not None else None
        except SluiceError:
            return
        try:
            with service.client(config, timeout=PATIENCE, within=PATIENCE, warn=doubts.append, **more) as client:
                made_up = begin(client, config, rules, settings.max_concurrent_requests)
                yield from map(ProbeWarning, (*doubts, *made_up.warnings))
        except SluiceError as error:
            yield from map(ProbeWarning, doubts)
            yield error


def service(config: PipelineConfig) -> Service:
    """Return ``services.pseudonymizer``."""
    settings = config.services.pseudonymizer
    return Service("pseudonymizer", settings.url, settings.auth, PseudonymizerProbe())


def _require_rules_to_be_read(client: ServiceClient, config: PipelineConfig) -> None:
    """Send rules that nobody can read: only a service that reads them refuses."""
    answer = client.send(
        "POST",
        endpoint(config),
        operation="probe",
        content=body_of(_UNREADABLE_RULES, json.dumps(PATIENT).encode()),
        headers=HEADERS,
        accept={400, 404, 405, 406, 415, 422, 501},
    )
    if answer.status == 200:
        raise _error(
            "pseudonymizer-too-old",
            f"the service ignores the anonymization file: it is older than {OLDEST}",
            f"update the pseudonymization service to {OLDEST} or later, or leave the key out and give the service the "
            "rules itself",
            KEY,
        )
    if answer.status != 400:
        raise _wrong_service(config, f"answered {answer.status}")


def _ask(client: ServiceClient, config: PipelineConfig, call: Deidentify) -> ProbeAnswer:
    try:
        answer = call(_TEXT)
    except (RefusedError, BusyError) as error:
        given = answer_of(error)
        if given is not None and _refuses_rules(given):
            raise _error(
                "rules-refused",
                f"the service cannot apply its rules to a made-up resource (status {given.status}, issue codes: "
                f"{', '.join(given.issue_codes()) or 'none'})",
                "does the domain exist in the pseudonym service (Vfps, gPAS)? Is the anonymization file valid? Is this "
                "the URL of the pseudonymization service? See its log",
                KEY if config.services.pseudonymizer.anonymization_config else "services.pseudonymizer.url",
            ).made_from(given) from None
        if given is not None and given.status in (404, 405, 406, 501):
            raise _wrong_service(config, f"answered {given.status}") from None
        raise
    return _read(answer, config)


def _refuses_rules(answer: Answer) -> bool:
    fatal = any(severity == "fatal" for severity, _ in issues(answer.body))
    return answer.status in (400, 422) or (answer.status == 500 and fatal)


def _read(answer: Answer, config: PipelineConfig) -> ProbeAnswer:
    try:
        bundle = json.loads(answer.body) if answer.says_json else None
    except ValueError:
        bundle = None
    entries = bundle.get("entry") if isinstance(bundle, dict) and bundle.get("resourceType") == "Bundle" else None
    resources = [object_of(object_of(entry).get("resource")) for entry in list_of(entries)]
    if [resource.get("resourceType") for resource in resources] != ["Patient", "Observation"]:
        raise _wrong_service(config, "did not give back a Bundle of the two resources in their order")
    return ProbeAnswer(resources[0], resources[1], object_of(bundle).get("type"))


def _judge(answer: ProbeAnswer, config: PipelineConfig) -> Iterator[str]:
    """Yield warnings; raise for the first row of the table that fits."""
    patient, observation = answer.patient, answer.observation
    if _unchanged(answer):
        hint = "which rules does the service use? see services.pseudonymizer.anonymization_config"
        what = (
            "the service did not pseudonymize a made-up resource: names, identifiers, dates and ids came back unchanged"
        )
        raise _error("not-pseudonymized", what, hint)
    ids = [patient.get("id"), observation.get("id")]
    if not any(ids) and not answer.subject and not observation.get("code"):
        hint = "these are the fall-back rules of a deployed service: give services.pseudonymizer.anonymization_config"
        raise _error("everything-removed", "the service removed everything from a made-up resource", hint)
    if any(one is not None and ID.fullmatch(str(one)) is None for one in ids):
        hint = "no FHIR server takes them: check the method or truncateToMaxLength of the rule for ids"
        raise _error(
            "ids-invalid", "the service makes ids that are no FHIR ids (more than 64, or other, characters)", hint
        )
    if answer.subject != f"Patient/{patient.get('id')}" and answer.subject:
        hint = "ids and references need the same method, domain and truncation in the rules"
        raise _error("references-broken", "the service makes ids to which references do not lead any more", hint)
    if answer.focus and "/" not in answer.focus:
        yield (
            "the service makes absolute references (http://host/Patient/…) lose their type: it does so where the host "
            "has a hyphen or an underscore"
        )
    if answer.bundle_type is None:
        yield "the rules remove Bundle.type; it is put back as it was"


def _unchanged(answer: ProbeAnswer) -> bool:
    names = ("id", "name", "identifier", "telecom", "address", "birthDate", "text")
    same_patient = all(answer.patient.get(name) == PATIENT[name] for name in names)
    others = ("id", "subject", "effectiveDateTime", "note")
    return same_patient and all(answer.observation.get(name) == OBSERVATION[name] for name in others)


def _wrong_service(config: PipelineConfig, what: str) -> WrongServiceError:
    return _error(
        "wrong-service",
        f"this is not a pseudonymization service: tested with a made-up resource, it {what}",
        "check this URL, and those of the other services: two may be swapped; no data was sent",
        f"services.pseudonymizer.url: POST {endpoint(config)}",
    )


def _error(reference: str, what: str, hint: str, context: str = "services.pseudonymizer") -> WrongServiceError:
    return WrongServiceError(reference, f"pseudonymizer: {what}", context=context, hint=hint, operation="probe")


def object_of(value: Any) -> dict[str, Any]:
    """Return a value that is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Return a value that is a list, else an empty one."""
    return value if isinstance(value, list) else []


def _reference(value: Any) -> str:
    found = value.get("reference") if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""
