"""Resources that wait for the targets of their references."""

from __future__ import annotations

from pathlib import Path

from tasks.send.order import DeferredResources
from tasks.shared.fhir.bundle import Resource


def made(identifier: str, ordinal: int = 0, raw: bytes = b"{}") -> Resource:
    return Resource("Observation", identifier, f"Observation/{identifier}", raw, "a.ndjson", 3, 4, ordinal)


def test_a_waiting_resource_comes_back_as_it_was_in_the_order_it_came(tmp_path: Path) -> None:
    ones = [made(f"o{n}", n, b'{"v":1.50,"n":%d}' % n) for n in range(50)]
    with DeferredResources(tmp_path) as deferred:
        for one in ones:
            deferred.put(one)
        assert list(map(deferred.read, deferred.keys())) == ones
        assert len(deferred) == 50
        assert deferred.holds(ones[3])
        assert not deferred.holds(made("o3", 99))


def test_what_is_taken_out_does_not_wait_any_more(tmp_path: Path) -> None:
    with DeferredResources(tmp_path) as deferred:
        deferred.put(made("a", 7))
        assert deferred.take_out("Observation/a") == ("a.ndjson", 7)
        assert deferred.take_out("Observation/a") is None
        assert deferred.read("Observation/a") is None
        assert len(deferred) == 0


def test_references_to_other_waiting_resources_are_found_in_all_their_spellings(tmp_path: Path) -> None:
    raw = (
        b'{"a":{"reference":"Observation/b"},"c":[{"reference" : "http://h/fhir/Observation/c/_history/2"}],'
        b'"d":{"reference":"Observation/d#part"},"e":{"reference":"Patient/p"},"f":{"reference":"Observation/a"}}'
    )
    with DeferredResources(tmp_path) as deferred:
        for name in "bcd":
            deferred.put(made(name))
        deferred.put(made("a", raw=raw))
        targets = list(deferred.targets("Observation/a", b"http://h/fhir/"))
    assert targets == ["Observation/b", "Observation/c", "Observation/d"]
