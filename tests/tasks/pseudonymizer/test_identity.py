"""Identity as a map: an original id becomes one new id, and references follow it (document 3 §1)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.pseudonymizer.agreement import Agreement, MixedUpError
from tasks.pseudonymizer.deidentification import Deidentification, RequestChunk
from tasks.pseudonymizer.identity import IdentityMap, IdentityVerdict
from tasks.shared.errors import ServiceError, SluiceError
from tasks.shared.fhir.references import target_of
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.http.answer import Answer
from tests.conftest import examples
from tests.peers.pseudonymization import bundle, observation, patient, pseudonyms, resource
from tests.tasks.pseudonymizer.test_splitting import answered, make, refused, written

HEX = hashlib.sha256


class IdentityService:
    """An honest service under some rules, and a client that checks its answers.

    ``kept`` types keep ids and references to them. A rule takes references away, the more ``gone`` is (0 to 7), and
    some resources of the types ``removed``.
    """

    def __init__(self, place: Path, **rules: Any) -> None:
        self.kept: frozenset[str] = rules.get("kept", frozenset())
        self.gone: int = rules.get("gone", 0)
        self.removed: frozenset[str] = rules.get("removed", frozenset())
        self.urls: str = rules.get("urls", "hashed")
        self.style: str = rules.get("style", "as it was")
        self.answer: Any = None
        self.work = Deidentification(
            lambda _: answered(self.answer),
            FailedAnswers(place).begin(),
            Agreement(bool(self.removed), self.removed or None, identities=rules.get("identities") or IdentityMap()),
        )

    def new(self, kind: str, own: str) -> str:
        return own if kind in self.kept else HEX(f"{kind} {own}".encode()).hexdigest()[:12]

    def reference(self, text: str) -> str:
        target = target_of(text)
        if target is None or target.kind == "#":
            return text
        if target.kind == "urn":
            return f"urn:uuid:{HEX(text.encode()).hexdigest()[:9]}"
        if target.kind == "Patient?":
            return f"Patient?identifier={HEX(text.encode()).hexdigest()[:9]}"
        new = self.new(*target.key.split("/"))
        return re.sub(r"/[^/]+(/_history/2)?$", rf"/{new}\1", text)

    def honest(self, sent: Any) -> Any:
        """Return the resource as an honest service answers it."""
        entries = sent.get("entry", [])
        kept = [
            one for index, one in enumerate(entries)
            if one["resource"]["resourceType"] not in self.removed or HEX(f"{index}".encode()).digest()[0] % 3
        ]  # fmt: skip
        found = self._element({**sent, **({"entry": kept} if entries else {})}, "")
        for before, after in zip(kept, found.get("entry", []), strict=True):
            if self.urls == "gone":
                after.pop("fullUrl", None)
            elif self.urls == "raw":
                after["fullUrl"] = before["fullUrl"]
        return found

    def _element(self, value: Any, path: str) -> Any:
        if isinstance(value, list):
            pruned = (self._element(one, path) for one in value)
            return [one for one in pruned if one != {}]
        if not isinstance(value, dict):
            return value
        kind = value.get("resourceType")
        found: dict[str, Any] = {}
        for key, one in value.items():
            if key == "id" and kind:
                found[key] = self.new(kind, one)
            elif key in ("reference", "fullUrl"):
                if not (key == "reference" and self.gone and HEX(f"{path} {one}".encode()).digest()[0] % 7 < self.gone):
                    found[key] = self.reference(one)
            elif (inside := self._element(one, f"{path}.{key}")) not in ({}, []):
                found[key] = inside
        if self.style == "in another order":
            found = dict(sorted(found.items(), reverse=True))
        return found

    def send(self, sent: Any, answer: Any = None) -> None:
        """Let the answer be checked. Raises what the step raises."""
        text = json.dumps(sent, separators=(",", ":")).encode()
        self.answer = json.dumps(self.honest(sent) if answer is None else answer, separators=(",", ":")).encode()
        if self.style == "sent with escapes":
            text = text.replace(b"/", rb"\/")
        if self.style == "with escapes":
            self.answer = self.answer.replace(b"/", rb"\/")
        self.work(RequestChunk("a.ndjson", 1, text, len(text) + 1))


OWN = st.sampled_from(["1", "2", "a", "b", "c-d"])
OTHERS = st.sampled_from(["Encounter", "Practitioner", "Organization", "Observation", "Group"])
PREFIX = st.sampled_from(["", "", "http://x.example/fhir/"])
SUFFIX = st.sampled_from(["", "", "/_history/2"])
LINKS = st.one_of(
    st.tuples(PREFIX, OTHERS, OWN, SUFFIX).map(lambda one: f"{one[0]}{one[1]}/{one[2]}{one[3]}"),
    OWN.map(lambda own: f"urn:uuid:{own}"),
    OWN.map(lambda own: f"#{own}"),
    OWN.map(lambda own: f"Patient?identifier={own}"),
    st.just("nothing"),
)


@st.composite
def bundles(draw: st.DrawFn) -> dict[str, Any]:
    """Draw one patient's Bundle: its ids and references are those of others as often as not."""
    own = draw(OWN)

    def references(most: int) -> Any:
        return [{"reference": one} for one in draw(st.lists(LINKS, max_size=most))]

    resources = [
        patient(own, link=[{"other": {"reference": f"Patient/{draw(OWN)}"}}], generalPractitioner=references(2))
    ]
    for _ in range(draw(st.integers(0, 4))):
        prefix = draw(PREFIX)
        one = observation(draw(OWN), own, performer=references(3), component=[{"extension": references(1)}])
        one["subject"]["reference"] = f"{prefix}Patient/{own}"
        resources.append(one)
    resources += [
        resource(kind, draw(OWN), partOf={"reference": draw(LINKS)}) for kind in draw(st.lists(OTHERS, max_size=3))
    ]
    return bundle(f"b{own}", *draw(st.permutations(resources)))


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "kept": frozenset(draw(st.sets(st.sampled_from(["Encounter", "Practitioner", "Organization", "Patient"])))),
        "gone": draw(st.sampled_from([0, 0, 2, 7])),
        "removed": frozenset(draw(st.sampled_from([[], [], ["Observation"], ["Encounter", "Observation"]]))),
        "urls": draw(st.sampled_from(["hashed", "raw", "gone"])),
        "style": draw(st.sampled_from(["as it was", "in another order", "with escapes", "sent with escapes"])),
    }


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(bundles(), min_size=1, max_size=5), how=rules())
def test_an_honest_service_raises_no_alarm(tmp_path: Path, lines: list[Any], how: dict[str, Any]) -> None:
    service = IdentityService(tmp_path, **how)
    for line in lines:
        service.send(line)
    for line in lines:  # and the same resources on other lines
        service.send(line)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(bundles(), min_size=2, max_size=4), how=rules(), data=st.data())
def test_a_reference_to_another_patient_is_always_noticed(
    tmp_path: Path, lines: list[Any], how: dict[str, Any], data: st.DataObject
) -> None:
    service = IdentityService(tmp_path, **how)
    for line in lines:
        service.send(line)
    answer = service.honest(lines[-1])
    subjects = [
        one["resource"]["subject"] for one in answer["entry"] if "reference" in one["resource"].get("subject", {})
    ]
    if not subjects:
        return
    told = data.draw(st.sampled_from(subjects))
    other = data.draw(OWN.map(lambda own: service.new("Patient", own)) | st.just("nobody"))
    if told["reference"].endswith(f"/{other}"):
        return
    told["reference"] = f"Patient/{other}"
    with pytest.raises(ServiceError) as caught:
        service.send(lines[-1], answer)
    assert caught.value.reference in ("references-differ", "foreign-patient-in-bundle")


def observations(number: int) -> dict[str, Any]:
    return observation(f"o{number}", f"p{number}")


class TestReferencesAlone:
    """Files of one resource a line, without the Patients."""

    def test_all_of_one_patient_are_noticed(self, tmp_path: Path) -> None:
        service = IdentityService(tmp_path)
        service.send(observations(1))
        lie = service.honest(observations(2))
        lie["subject"] = {"reference": f"Patient/{service.new('Patient', 'p1')}"}
        with pytest.raises(MixedUpError) as caught:
            service.send(observations(2), lie)
        assert caught.value.reference == "references-differ"

    def test_patients_that_come_later_must_agree(self, tmp_path: Path) -> None:
        service = IdentityService(tmp_path)
        service.send(observations(1))
        with pytest.raises(MixedUpError) as caught:
            service.send(patient("p1"), patient("other"))
        assert caught.value.reference == "references-differ"

    def test_others_may_become_one(self, tmp_path: Path) -> None:
        service = IdentityService(tmp_path)
        for number in range(3):
            sent = observation(f"o{number}", "p", performer=[{"reference": f"Practitioner/{number}"}])
            answer = service.honest(sent) | {"performer": [{"reference": "Practitioner/anonymous"}]}
            service.send(sent, answer)


def test_an_id_that_becomes_another_one_on_another_line_is_noticed(tmp_path: Path) -> None:
    service = IdentityService(tmp_path)
    service.send(resource("Organization", "o"))
    with pytest.raises(MixedUpError) as caught:
        service.send(resource("Organization", "o"), resource("Organization", "x"))
    assert caught.value.reference == "references-differ"
    service.send(resource("Organization", "o"))  # what was refused is not believed


def test_two_ids_merged_in_an_answer_are_noticed_and_earlier_answers_still_count(tmp_path: Path) -> None:
    service = IdentityService(tmp_path)
    with pytest.raises(ServiceError) as caught:
        service.send(bundle("b", patient("a"), patient("b")), bundle("B", patient("x"), patient("x")))
    assert caught.value.reference == "pseudonymizer-answer"
    assert not isinstance(caught.value, MixedUpError)


def test_answers_of_which_a_rule_took_something_are_compared_too(tmp_path: Path) -> None:
    """An answer once more, though it cannot be paired with what was sent: neither has a Patient."""
    service = IdentityService(tmp_path, removed=frozenset({"Organization"}))

    def sent(first: int) -> dict[str, Any]:
        return bundle("b", *(resource("Organization", f"o{number}") for number in range(first, first + 3)))

    answer = bundle("B", resource("Organization", "x1"), resource("Organization", "x2"))
    service.send(sent(0), answer)
    service.send(sent(1), answer)  # they may be o1 and o2, which are in both
    with pytest.raises(SluiceError) as caught:
        service.send(sent(3), answer)
    assert caught.value.reference == "pseudonymizer-answer"


MOTHER_AND_CHILD = [patient("m"), *map(observation, "ab", "mm"), patient("c"), *map(observation, "de", "mc")]


@pytest.mark.parametrize(("threshold", "limit"), [(700, 10_000), (10_000, 700)])
def test_a_part_of_a_bundle_of_two_patients_has_no_foreign_one(tmp_path: Path, threshold: int, limit: int) -> None:
    def call(text: bytes) -> Answer:
        if len(text) > limit:
            raise refused()
        return answered(pseudonyms(text))

    line = json.dumps(bundle("b", *MOTHER_AND_CHILD), separators=(",", ":")).encode()
    output, counts = written(make(tmp_path, line), tmp_path, threshold, call)
    assert output == pseudonyms(line) + b"\n"
    assert counts["split"] == 1


def test_a_rule_that_removes_one_of_two_patients_makes_the_other_no_foreign_one(tmp_path: Path) -> None:
    service = IdentityService(tmp_path, removed=frozenset({"Patient"}))
    sent = bundle("b", *MOTHER_AND_CHILD)
    answer = IdentityService(tmp_path).honest(sent)
    assert answer["entry"].pop(0)["resource"]["resourceType"] == "Patient"
    service.send(sent, answer)


@pytest.mark.parametrize(
    ("plain", "escaped"), [(b"/", rb"\/"), (b'"Patient/', rb'"\u0050atient/'), (b"ref", rb"\u0072ef")]
)
def test_references_that_were_sent_with_escapes_are_read(tmp_path: Path, plain: bytes, escaped: bytes) -> None:
    """PHP escapes each slash, and a service that reads JSON and writes it does not."""
    line = json.dumps(bundle("b", *MOTHER_AND_CHILD), separators=(",", ":")).encode()

    def call(told: bytes) -> bytes:
        work = Deidentification(lambda _: answered(told), FailedAnswers(tmp_path).begin())
        output = work(RequestChunk("a.ndjson", 1, line.replace(plain, escaped), len(line)))
        assert output.whole is not None
        return output.whole

    assert call(pseudonyms(line)) == pseudonyms(line)
    with pytest.raises(ServiceError) as caught:
        call(pseudonyms(line.replace(b'"reference":"Patient/m', b'"reference":"Patient/c', 1)))
    assert caught.value.reference == "references-differ"


def ids(*names: str) -> list[str]:
    return [f"Patient/{name}" for name in names]


def test_resources_that_changed_their_ids_are_refused_each_time() -> None:
    identities = IdentityMap()
    assert identities.agree(ids("c"), ids("x")) is IdentityVerdict.AGREES
    for _ in range(2):
        assert identities.agree(ids("a", "b"), ids("b", "a")) is IdentityVerdict.TAKEN_HERE
    assert identities.agree(ids("c"), ids("x")) is IdentityVerdict.AGREES
    assert (
        identities.agree(ids("1", "2"), ids("2", "1")) is IdentityVerdict.AGREES
    )  # a service that counts its pseudonyms


class TestTheFile:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "state" / "identities.bin"

    @pytest.fixture(autouse=True)
    def directory(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700)

    def test_another_run_knows_what_was_written(self, path: Path) -> None:
        before = IdentityMap(path)
        before.agree(ids("a"), ids("x"))
        before.write()
        before.agree(ids("b"), ids("y"))  # killed before it was written
        after = IdentityMap(path)
        assert after.agree(ids("a"), ids("z")) is IdentityVerdict.DIFFERS
        assert after.agree(ids("c"), ids("x")) is IdentityVerdict.TAKEN
        assert after.agree(ids("b"), ids("z")) is IdentityVerdict.AGREES

    def test_a_torn_row_is_cut_off(self, path: Path) -> None:
        before = IdentityMap(path)
        before.agree(ids("a"), ids("x"))
        before.close()
        size = path.stat().st_size
        with path.open("ab") as file:
            file.write(b"torn")
        after = IdentityMap(path)
        assert path.stat().st_size == size
        assert after.agree(ids("a"), ids("z")) is IdentityVerdict.DIFFERS

    def test_it_is_private_holds_no_id_and_its_hashes_are_those_of_no_other_job(self, path: Path) -> None:
        found = set()
        for number in range(2):
            identities = IdentityMap(path.with_name(f"{number}.bin"))
            identities.agree(ids("CANARY-a"), ids("CANARY-x"))
            identities.close()
            text = path.with_name(f"{number}.bin").read_bytes()
            assert b"CANARY" not in text
            found.add(text[16:])
            assert stat.S_IMODE(path.with_name(f"{number}.bin").stat().st_mode) == 0o600
        assert len(found) == 2

    def test_it_is_removed_when_nobody_needs_it(self, path: Path) -> None:
        IdentityMap(path).close(keep=False)
        assert not path.exists()

    def test_one_of_somebody_else_is_not_believed(self, path: Path) -> None:
        other = path.with_name("other")
        other.write_bytes(os.urandom(48))
        os.link(other, path)
        assert IdentityMap(path).agree(ids("a"), ids("x")) is IdentityVerdict.AGREES
        assert path.stat().st_size == 16

    @pytest.mark.parametrize("wrong", ["an id became two", "two became one", None])
    def test_what_is_too_much_for_memory_is_compared_at_the_end(self, path: Path, wrong: str | None) -> None:
        identities = IdentityMap(path, most=20)
        assert identities.agree(ids("a"), ids("x")) is IdentityVerdict.AGREES
        for number in range(200):
            assert identities.agree(ids(f"a{number}"), ids(f"x{number}")) is IdentityVerdict.AGREES
        last = {"an id became two": ("a", "y"), "two became one": ("b", "x"), None: ("a", "x")}[wrong]
        assert identities.agree(ids(last[0]), ids(last[1])) is IdentityVerdict.AGREES  # forgotten
        assert len(identities._now) + len(identities._before) <= 60
        assert identities.contradicts() is (wrong is not None)
        identities.close()
        again = IdentityMap(path, most=20)  # also by another run
        assert again.contradicts() is (wrong is not None)

    @pytest.mark.parametrize(
        ("one", "other", "wrong"),
        [
            ("ax", "ay", True), ("ax", "bx", True), ("ab", "ba", True),
            ("ax", "by", False), ("ax", "ax", False), ("ab", "bc", False), ("12", "21", False),
        ],
    )  # fmt: skip
    def test_the_files_of_parts_are_compared_with_each_other(
        self, path: Path, one: str, other: str, wrong: bool
    ) -> None:
        IdentityMap(path).close()
        parts = [path.with_name(f"{number}.bin") for number in range(2)]
        for part, (old, new) in zip(parts, [one, other], strict=True):
            identities = IdentityMap(part, parts=[path])
            assert identities.agree(ids(old), ids(new)) is IdentityVerdict.AGREES
            identities.close()
        with parts[0].open("ab") as file:
            file.write(b"torn")
        assert IdentityMap(path, parts=parts).contradicts() is wrong

    def test_a_part_knows_what_the_core_file_became(self, path: Path) -> None:
        core = IdentityMap(path)
        core.agree(ids("a"), ids("x"))
        core.close()
        part = IdentityMap(path.with_name("part.bin"), parts=[path])
        assert part.agree(ids("a"), ids("y")) is IdentityVerdict.DIFFERS

    def test_a_file_that_begins_anew_keeps_its_key(self, path: Path) -> None:
        before = IdentityMap(path)
        before.agree(ids("a"), ids("x"))
        before.close()
        key = path.read_bytes()[:16]
        assert IdentityMap(path, anew=True).agree(ids("a"), ids("z")) is IdentityVerdict.AGREES
        assert path.read_bytes() == key

    def test_what_is_in_use_is_not_forgotten(self, path: Path) -> None:
        identities = IdentityMap(path, most=20)
        for number in range(200):
            assert identities.agree([*ids("a", f"a{number}")], [*ids("x", f"x{number}")]) is IdentityVerdict.AGREES
        assert identities.agree(ids("b"), ids("x")) is IdentityVerdict.TAKEN


def references_in(value: Any) -> Iterator[str]:
    yield from re.findall(r'"reference": "([^"]+)"', json.dumps(value))


def test_the_honest_service_of_these_tests_changes_what_it_should(tmp_path: Path) -> None:
    sent = bundle("b", patient("a"), observation("o", "a", performer=[{"reference": "Organization/1"}]))
    answer = IdentityService(tmp_path, kept=frozenset({"Organization"})).honest(sent)
    assert [target_of(one) for one in references_in(answer)] == [
        ("Patient", f"Patient/{answer['entry'][0]['resource']['id']}"), ("Organization", "Organization/1")
    ]  # fmt: skip
    assert "Patient/a" not in json.dumps(answer["entry"][1]["resource"])
