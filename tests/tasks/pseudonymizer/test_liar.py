"""A pseudonymization service that lies, in one way at a time (document 3 §4): what becomes of each lie.

Honest but for one request; every lie ends the step with an error that names file and line, or is listed with the reason
why it cannot be noticed. ``docs/lies.md`` is made from this table (``tests/docs/test_lies.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.pseudonymizer.client import service as declared_service
from tasks.shared.errors import SluiceError
from tests.peers import job
from tests.peers.lies import HonestAnswer, Lie
from tests.peers.pseudonymization import (
    REMOVING,
    FakePseudonymizer,
    PseudonymizationRequest,
    PseudonymizerJob,
    bundle,
    observation,
    patient,
    pseudonyms,
)
from tests.peers.server import Reply

VICTIM = 3
"""The request that is answered with a lie, of eight."""
SWAPPED, SWAPPED_IDS = "it and the next answer changed places", "it and the next answer, with the ids as they were"
"""Two requests are answered with a lie."""
NESTED = "a Bundle inside the Bundle is emptied"
REMOVE = "with a remove rule for Observations: "
"""How lies begin that a service tells whose rules take the second Observation away."""


def entry(number: int, change: Callable[[dict[str, Any]], Any]) -> Callable[[HonestAnswer], Any]:
    """Change the resource of one entry."""

    def lie(asked: HonestAnswer) -> Any:
        change(asked.answer["entry"][number]["resource"])
        return asked.answer

    return lie


def with_entries(change: Callable[[HonestAnswer], list[Any]]) -> Callable[[HonestAnswer], Any]:
    return lambda asked: asked.answer | {"entry": change(asked)}


def doubled(text: str, key: str, value: str) -> str:
    """Repeat a key at the beginning of the object ``text``."""
    return "{" + f'"{key}":{value},' + text[1:]


def residual(**elements: Any) -> Callable[[HonestAnswer], Any]:
    """The patient keeps some elements as they were sent."""
    return entry(0, lambda resource: resource.update(elements))


def dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


NAME = [{"family": "Canary", "given": ["Bird"], "use": "official"}]
IDENTIFIER = [{"system": "http://hospital.example/mrn", "value": "4711-CANARY"}]
OTHER = {"system": "http://hospital.example/mrn", "value": "0815-CANARY"}
TELECOM = [{"system": "phone", "value": "+49 30 4711"}]
ADDRESS = [{"line": ["Canaryweg 1"], "city": "Berlin"}]
PHOTO = [{"contentType": "image/png", "data": "Q0FOQVJZ"}]
CONTACT = [{"name": {"family": "Canarymother"}}]

ANSWER, ENTRIES, RESIDUAL = "pseudonymizer-answer", "pseudonymizer-entries", "residual-identifiers"
DIFFER, FOREIGN = "references-differ", "foreign-patient-in-bundle"


def patient_before(asked: HonestAnswer) -> str:
    """Return a reference to the pseudonym of the patient of the line before."""
    return f"Patient/{asked.before[-1]['entry'][0]['resource']['id']}"


def referring(number: int, **elements: Callable[[HonestAnswer], Any] | str) -> Callable[[HonestAnswer], Any]:
    """Make the resource of one entry refer to something else."""

    def lie(asked: HonestAnswer) -> Any:
        for name, value in elements.items():
            reference = {"reference": value if isinstance(value, str) else value(asked)}
            asked.answer["entry"][number]["resource"][name] = reference
        return asked.answer

    return lie


def performed(change: Callable[[list[Any]], list[Any]]) -> Callable[[HonestAnswer], Any]:
    return entry(1, lambda one: one.update({"performer": change(one["performer"])}))


def all_of_one_patient(asked: HonestAnswer) -> Any:
    for each in asked.entries[1:]:
        each["resource"]["subject"] = {"reference": patient_before(asked)}
    return asked.answer


def foreign_entry(asked: HonestAnswer) -> Any:
    return asked.answer | {"entry": [asked.entries[0], asked.before[-1]["entry"][1], *asked.entries[2:]]}


LIES: dict[str, Lie] = {
    # What it is
    "HTML": Lie(lambda _: "<html>welcome</html>", ANSWER),
    "nothing": Lie(lambda _: "", ANSWER),
    "half of the JSON": Lie(lambda asked: dumped(asked.answer)[:-20], ANSWER),
    "two documents": Lie(lambda asked: dumped(asked.answer) * 2, ANSWER),
    "a JSON list": Lie(lambda asked: [asked.answer], ANSWER),
    "null": Lie(lambda _: None, ANSWER),
    "no resourceType": Lie(lambda asked: {key: asked.answer[key] for key in ("id", "type", "entry")}, ANSWER),
    "an OperationOutcome": Lie(lambda _: {"resourceType": "OperationOutcome", "issue": []}, ANSWER),
    "the Patient without its Bundle": Lie(lambda asked: asked.entries[0]["resource"], ANSWER),
    "Parameters around it": Lie(
        lambda asked: {"resourceType": "Parameters", "parameter": [{"name": "x", "resource": asked.answer}]}, ANSWER
    ),
    "another type of Bundle": Lie(lambda asked: asked.answer | {"type": "history"}, ANSWER),
    "text/html by its header": Lie(lambda asked: asked.answer, ANSWER, headers={"Content-Type": "text/html"}),
    "XML by its header": Lie(lambda asked: asked.answer, ANSWER, headers={"Content-Type": "application/fhir+xml"}),
    "no UTF-8": Lie(lambda asked: dumped(asked.answer).encode().replace(b"final", b"\xff\xfe"), ANSWER),
    "nested too deeply": Lie(lambda asked: dumped(asked.answer)[:-1] + ',"x":' + "[" * 9000 + "]" * 9000 + "}", ANSWER),
    # Entries
    "an entry is missing": Lie(with_entries(lambda asked: asked.entries[:-1]), ENTRIES),
    "an entry too many": Lie(with_entries(lambda asked: [*asked.entries, asked.entries[-1]]), ENTRIES),
    "no entries": Lie(with_entries(lambda _: []), ENTRIES),
    "entry is gone": Lie(lambda asked: {key: value for key, value in asked.answer.items() if key != "entry"}, ENTRIES),
    "entry is an object": Lie(lambda asked: asked.answer | {"entry": asked.entries[0]}, ANSWER),
    "an entry is null": Lie(with_entries(lambda asked: [*asked.entries[:-1], None]), ANSWER),
    "an entry without its resource": Lie(
        with_entries(lambda asked: [*asked.entries[:-1], {"fullUrl": "urn:x"}]), ANSWER
    ),
    "a resource that is null": Lie(with_entries(lambda asked: [*asked.entries[:-1], {"resource": None}]), ANSWER),
    "a resource that is a text": Lie(with_entries(lambda asked: [*asked.entries[:-1], {"resource": "x"}]), ANSWER),
    "entries in another order": Lie(with_entries(lambda asked: asked.entries[::-1]), ANSWER),
    "an Observation twice for two": Lie(
        with_entries(lambda asked: [*asked.entries[:2], asked.entries[1], *asked.entries[3:]]), ANSWER
    ),
    "two Observations changed places": Lie(
        with_entries(lambda asked: [asked.entries[at] for at in (0, 2, 1, 3)]), DIFFER
    ),
    "two Observations changed places, but not their fullUrl": Lie(
        with_entries(
            lambda asked: [
                asked.entries[0],
                asked.entries[2] | {"fullUrl": asked.entries[1]["fullUrl"]},
                asked.entries[1] | {"fullUrl": asked.entries[2]["fullUrl"]},
                asked.entries[3],
            ]
        ),
        None,
        "which pseudonym belongs to which id is the service's secret; both resources are there, once each",
    ),
    "a resource of another type": Lie(entry(1, lambda one: one.update(resourceType="Condition")), ANSWER),
    "a resource without a type": Lie(entry(1, lambda one: one.pop("resourceType")), ANSWER),
    # Keys that stand twice
    "entry twice": Lie(lambda asked: doubled(dumped(asked.answer), "entry", "[]"), ANSWER),
    "resourceType twice": Lie(lambda asked: doubled(dumped(asked.answer), "resourceType", '"Bundle"'), ANSWER),
    "id twice in a pretty answer": Lie(
        lambda asked: doubled(json.dumps(asked.answer, indent=2), "id", '"other"'), ANSWER
    ),
    "id twice, once escaped": Lie(lambda asked: doubled(dumped(asked.answer), "\\u0069d", '"other"'), ANSWER),
    "resource twice in an entry": Lie(
        lambda asked: dumped(asked.answer).replace('{"fullUrl"', '{"resource":{"resourceType":"Patient"},"fullUrl"', 1),
        ANSWER,
    ),
    "subject twice in a resource": Lie(
        lambda asked: dumped(asked.answer).replace('"subject"', '"subject":{},"subject"', 1), ANSWER
    ),
    # Other requests
    "the answer before": Lie(lambda asked: asked.before[-1], ANSWER),
    "the first answer again": Lie(lambda asked: asked.before[0], ANSWER),
    "an entry of the answer before": Lie(foreign_entry, ANSWER),
    "the patient of the answer before": Lie(
        with_entries(lambda asked: [asked.before[-1]["entry"][0], *asked.entries[1:]]), ANSWER
    ),
    "the answer to another job's line": Lie(lambda _: honest(dumped(line(9)).encode()), DIFFER),
    SWAPPED: Lie(
        lambda _: without_urls(honest(dumped(line(VICTIM + 1)).encode())),
        None,
        "which pseudonym belongs to which id is the service's secret; both are there, once each",
    ),
    SWAPPED_IDS: Lie(lambda _: plain(line(VICTIM + 1)), ANSWER),
    NESTED: Lie(
        entry(4, lambda one: one.update(entry=[])),
        None,
        "a resource in an entry is not taken apart: no step counts or reads what is in a Bundle there",
    ),
    # Identity
    "a subject is the patient of the line before": Lie(referring(1, subject=patient_before), DIFFER),
    "all subjects are the patient of the line before": Lie(all_of_one_patient, DIFFER),
    "a subject is a pseudonym of nobody": Lie(referring(1, subject="Patient/0123456789"), DIFFER),
    "a subject stays as it was sent": Lie(referring(1, subject=f"Patient/p{VICTIM}"), DIFFER),
    "a subject has another server": Lie(
        referring(1, subject=lambda asked: f"http://x.example/fhir/{patient_before(asked)}/_history/1"), DIFFER
    ),
    "a subject is a search for another patient": Lie(
        referring(1, subject=lambda asked: patient_before(asked).replace("/", "?_id=")), DIFFER
    ),
    "a subject is a Group": Lie(referring(1, subject="Group/0123456789"), DIFFER),
    "a subject is gone": Lie(entry(1, lambda one: one.pop("subject")), None, "rules may redact a reference"),
    "a subject is no reference": Lie(
        referring(1, subject="nobody"), None, "it refers to nothing, like a reference that rules redact or encrypt"
    ),
    "a reference to a patient too many": Lie(referring(2, focus=patient_before), DIFFER),
    "a reference under a key with an escape": Lie(
        lambda asked: dumped(asked.answer).replace(
            '"subject":{"reference":"Patient/', '"subject":{"r\\u0065ference":"Patient/0', 1
        ),
        DIFFER,
    ),
    "a reference twice": Lie(
        lambda asked: dumped(asked.answer).replace(
            '"subject":{', f'"subject":{{"reference":"{patient_before(asked)}",', 1
        ),
        ANSWER,
    ),
    "a reference twice, once under a key with an escape": Lie(
        lambda asked: dumped(asked.answer).replace(
            '"subject":{', f'"subject":{{"r\\u0065ference":"{patient_before(asked)}",', 1
        ),
        ANSWER,
    ),
    "a reference that a service resolved, to another patient": Lie(referring(3, subject=patient_before), FOREIGN),
    "a performer is another one": Lie(
        performed(lambda old: [{"reference": "Practitioner/0123456789"}, *old[1:]]), DIFFER
    ),
    "two performers changed places": Lie(performed(lambda old: old[::-1]), DIFFER),
    "a performer stays as it was sent": Lie(
        performed(lambda old: [{"reference": "Practitioner/dr"}, *old[1:]]),
        None,
        "references to other resources may be kept on purpose; a warning gives their number",
    ),
    "a performer is another one, and one is gone": Lie(
        performed(lambda old: [{"reference": old[1]["reference"]}]),
        None,
        "a rule may redact a reference; that both are pseudonyms of this request is compared",
    ),
    "derivedFrom is another resource of the Bundle": Lie(
        entry(1, lambda one: one.update(derivedFrom=[{"reference": f"Observation/{one['id']}"}])), DIFFER
    ),
    "a fullUrl is that of another resource": Lie(
        with_entries(lambda asked: [asked.entries[0] | {"fullUrl": asked.entries[1]["fullUrl"]}, *asked.entries[1:]]),
        DIFFER,
    ),
    f"{REMOVE}the patient is missing, too": Lie(with_entries(lambda asked: asked.entries[1:]), ENTRIES),
    f"{REMOVE}all Observations are missing": Lie(
        with_entries(lambda asked: asked.entries[:1]), None, "only the service evaluates the rules"
    ),
    f"{REMOVE}the answer before": Lie(lambda asked: asked.before[-1], ANSWER),
    f"{REMOVE}the first answer again": Lie(lambda asked: asked.before[0], ANSWER),
    f"{REMOVE}the patient of the answer before": Lie(
        with_entries(lambda asked: [asked.before[-1]["entry"][0], *asked.entries[1:]]), ANSWER
    ),
    f"{REMOVE}an Observation of the answer before": Lie(
        with_entries(lambda asked: [asked.entries[0], asked.before[-1]["entry"][1], asked.entries[2]]), DIFFER
    ),
    f"{REMOVE}a subject is the patient of the line before": Lie(referring(1, subject=patient_before), DIFFER),
    # What was to go
    "everything as it was sent": Lie(lambda asked: asked.sent, RESIDUAL),
    "the name stays": Lie(residual(name=NAME), RESIDUAL),
    "the given name alone stays": Lie(residual(name=[{"family": "x", "given": ["Bird"]}]), RESIDUAL),
    "the name stays among others": Lie(residual(name=[{"family": "x"}, {"text": "y"}, *NAME]), RESIDUAL),
    "the identifier stays": Lie(residual(identifier=IDENTIFIER), RESIDUAL),
    "the telephone stays": Lie(residual(telecom=TELECOM), RESIDUAL),
    "the street stays": Lie(residual(address=ADDRESS), RESIDUAL),
    "the photo stays": Lie(residual(photo=PHOTO), RESIDUAL),
    "the contact stays": Lie(residual(contact=CONTACT), RESIDUAL),
    "the name with escapes stays": Lie(
        lambda asked: dumped(asked.answer).replace('"resourceType":"Patient"',
                                                   '"resourceType":"Patient","name":[{"family":"\\u0043anary"}]', 1),
        RESIDUAL,
    ),
    "the identifier stays in an Observation": Lie(
        entry(1, lambda one: one["subject"].update(identifier=IDENTIFIER[0])), RESIDUAL
    ),
    "the identifier stays in an extension": Lie(
        entry(2, lambda one: one.update(extension=[{"valueReference": {"identifier": IDENTIFIER[0]}}])), RESIDUAL
    ),
    "a contained patient keeps the name": Lie(
        entry(1, lambda one: one.update(contained=[{"resourceType": "Patient", "name": NAME}])), RESIDUAL
    ),
    "the name stands in a note": Lie(
        entry(1, lambda one: one.update(note=[{"text": "Canary came"}])),
        None,
        "the step does not search free text; the release report does",
    ),
    "the city stays": Lie(
        residual(address=[{"city": "Berlin"}]), None, "rules may keep the parts of an address above the street"
    ),
    "the id stays": Lie(
        entry(1, lambda one: one.update(id="p3-o1")), None, "ids may be kept on purpose; a warning gives their number"
    ),
    "another patient's values": Lie(
        entry(1, lambda one: one.update(status="amended")),
        None,
        "the service applies the rules; Sluice only compares elements that must be kept or removed",
    ),
    "the identifier stays in a search": Lie(
        entry(1, lambda one: one["subject"].update(reference="Patient?identifier=4711-CANARY")), DIFFER
    ),
    "the Bundle has the identifier": Lie(lambda asked: asked.answer | {"identifier": IDENTIFIER[0]}, RESIDUAL),
    "the type is escaped and the name stays": Lie(
        lambda asked: dumped(asked.answer).replace('"resourceType":"Patient"',
                                                   '"resourceType":"Pat\u0069ent","name":[{"family":"Canary"}]', 1),
        RESIDUAL,
    ),
    "the identifier of a patient on another line": Lie(
        entry(1, lambda one: one["subject"].update(identifier=OTHER)),
        None,
        "Sluice compares line by line; among the numbers of all patients a short one would match by chance",
    ),
    "an identifier that is no text": Lie(
        residual(identifier=[{"value": ["x"]}]), None, "it is not an original value; the validation checks its format"
    ),
    # HTTP
    "202": Lie(lambda asked: asked.answer, ANSWER, status=202),
    "a Content-Length that is too long": Lie(lambda asked: asked.answer, "connection-broken", cut=True),
    "a redirect": Lie(
        lambda _: "", "redirect-refused", status=307, headers={"Location": "http://127.0.0.1:1/fhir/$de-identify"}
    ),
    "an empty 204": Lie(lambda _: "", ANSWER, status=204),
}  # fmt: skip


OF_OTHER_REQUESTS = {name for name in LIES if "answer before" in name or "answer again" in name} | {SWAPPED_IDS}
MADE_UP: dict[str, Lie] = {
    name: replace(lie, reference="wrong-service")
    for name, lie in LIES.items()
    if lie.reference in (ANSWER, ENTRIES)
    and name not in {*OF_OTHER_REQUESTS, "an Observation twice for two"}
    and not name.startswith("a reference twice")
}
"""Lies about the made-up resource, which has two entries and goes first."""


def line(number: int, *more: dict[str, Any]) -> dict[str, Any]:
    one = f"p{number}"
    person = patient(one)
    if number == VICTIM - 1:
        person["identifier"] = [OTHER]
    if number == VICTIM:
        person |= {
            "name": NAME, "identifier": IDENTIFIER, "telecom": TELECOM, "address": ADDRESS, "photo": PHOTO,
            "contact": CONTACT,
        }  # fmt: skip
    performer = [{"reference": "Practitioner/dr"}, {"reference": "Practitioner/surgeon"}]
    derived = [{"reference": f"Observation/{one}-o2"}]
    first = observation(f"{one}-o1", one, status="final", performer=performer, derivedFrom=derived)
    urn = observation(f"{one}-o3") | {"subject": {"reference": f"urn:uuid:0000000{number}-0000-4000-8000-000000000000"}}
    return bundle(f"b{number}", person, first, observation(f"{one}-o2", one), urn, *more)


def honest(resource: bytes) -> dict[str, Any]:
    return plain(json.loads(pseudonyms(resource)))


def without_urls(document: dict[str, Any]) -> dict[str, Any]:
    for each in document["entry"]:
        each.pop("fullUrl")
    return document


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """Without what identifies persons."""
    for each in document["entry"]:
        for key in ("name", "identifier", "telecom", "address", "photo", "contact"):
            each["resource"].pop(key, None)
    return document


@pytest.mark.slow
@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_noticed_before_the_next_step_or_listed(name: str, tmp_path: Path) -> None:
    lie = LIES[name]
    job = PseudonymizerJob(tmp_path)
    more = [bundle("nested", observation("inside"))] if name == NESTED else []
    job.write("a.ndjson", *(line(number, *more) for number in range(8)))
    before: list[dict[str, Any]] = []
    removing = name.startswith(REMOVE)

    def script(number: int, request: PseudonymizationRequest) -> Reply | None:
        if request.is_probe:
            return None
        answer = honest(request.resource)
        if removing:
            del answer["entry"][2]
        if json.loads(request.resource)["id"] == f"b{VICTIM}":
            return lie.reply(lie.tell(HonestAnswer(json.loads(request.resource), answer, before)))
        if number == VICTIM + 1 and name in (SWAPPED, SWAPPED_IDS):
            other = line(VICTIM)
            answer = plain(other) if name == SWAPPED_IDS else without_urls(honest(dumped(other).encode()))
        before.append(answer)
        return Reply(body=json.dumps(answer).encode())

    rules = REMOVING if removing else None
    with FakePseudonymizer(script=script) as service:
        if lie.reference is None:
            job.run(service.url, max_concurrent_requests=1, rules=rules)
            return
        with pytest.raises(SluiceError) as caught:
            job.run(service.url, max_concurrent_requests=1, attempts=1, rules=rules)
    # The answer that another request got may be compared before that request's own: then that one is the contradiction.
    exchanged = name in OF_OTHER_REQUESTS and caught.value.reference == DIFFER
    assert caught.value.reference == lie.reference or exchanged
    assert caught.value.context is not None
    where = f"a.ndjson:{VICTIM + 1 + (name == SWAPPED_IDS)}"
    assert ("a.ndjson" if lie.reference == RESIDUAL or exchanged else where) in caught.value.context
    assert "anary" not in caught.value.render()
    assert not (job.output / "a.ndjson").exists()  # no later step sees it


@pytest.mark.parametrize("name", MADE_UP)
def test_a_lie_about_the_made_up_resource_is_noticed_before_a_job_exists(name: str) -> None:
    lie = MADE_UP[name]

    def script(_: int, request: PseudonymizationRequest) -> Reply:
        return lie.reply(lie.tell(HonestAnswer(json.loads(request.resource), honest(request.resource), [])))

    with FakePseudonymizer(script=script) as service:
        config = job.configuration({"pseudonymizer": {"url": service.url}}, attempts=1)
        (found,) = job.probed(declared_service(config), config)
        assert (found.reference, found.transient, len(service.requests)) == (lie.reference, False, 1)


@pytest.mark.parametrize("ids", ["kept", "pseudonyms"])
def test_after_answers_that_were_mixed_up_all_that_the_run_wrote_is_made_again(ids: str, tmp_path: Path) -> None:
    def transform(resource: bytes) -> bytes:
        document = plain(json.loads(resource if ids == "kept" else pseudonyms(resource)))
        return dumped(document if ids == "kept" else without_urls(document)).encode()

    job = PseudonymizerJob(tmp_path)
    for number in range(6):
        job.write(f"{number}.ndjson", line(number))
    # The second answer stands for the first request; where ids are kept the first one for the second, too.
    swapped = {"b2": 3, "b3": 2 if ids == "kept" else 3}

    def mixed(_: int, request: PseudonymizationRequest) -> Reply | None:
        number = swapped.get(str(json.loads(request.resource).get("id")))
        return None if number is None else Reply(body=transform(dumped(line(number)).encode()))

    with FakePseudonymizer(transform, mixed) as service:
        with pytest.raises(SluiceError) as caught:
            job.run(service.url, max_concurrent_requests=1)
        # The one whose answer came second: a thread may overtake another one on its way to the only slot.
        named = [number for number in range(6) if f"{number}.ndjson:1" in str(caught.value.context)]
        assert (caught.value.reference, named) in [(ANSWER, [2]), (ANSWER, [3])]
        swapped.clear()
        before = len(service.requests)
        report = job.run(service.url)
        assert len(service.requests) - before == 6
    assert any("answers were mixed up" in warning for warning in report.warnings)
    for number in range(6):
        assert [json.loads(text) for text in job.lines(f"{number}.ndjson")] == [
            json.loads(transform(dumped(line(number)).encode()))
        ]
