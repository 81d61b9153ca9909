"""The transaction Bundle (document 3 §7, document 1 "services.send")."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tasks.send.transaction import MAX_BODY, MIN_BODY, Limits, Transactions
from tasks.shared.fhir.bundle import Resource

TRANSACTIONS = Transactions("https://fhir.example/base/")


def made(kind: str, identifier: str, raw: bytes) -> Resource:
    return Resource(kind, identifier, f"{kind}/{identifier}", raw, "a.ndjson", 1, None, 0)


def test_the_client_appends_fhir_to_the_root_url() -> None:
    assert TRANSACTIONS.url == "https://fhir.example/base/fhir"


def test_every_entry_is_put_type_id_with_a_full_url_of_its_own() -> None:
    body = TRANSACTIONS.body([made("Patient", "p", b'{"resourceType":"Patient"}'), made("Group", "g", b"{}")])
    assert json.loads(body) == {
        "resourceType": "Bundle",
        "type": "transaction",
        "entry": [
            {
                "fullUrl": "https://fhir.example/base/fhir/Patient/p",
                "resource": {"resourceType": "Patient"},
                "request": {"method": "PUT", "url": "Patient/p"},
            },
            {
                "fullUrl": "https://fhir.example/base/fhir/Group/g",
                "resource": {},
                "request": {"method": "PUT", "url": "Group/g"},
            },
        ],
    }


def test_a_resource_travels_as_the_bytes_it_came_in() -> None:
    raw = b'{ "v":[1.50, 1E2,-0.0 ,1e400], "t":"\\u00e4\xc3\xa4" }'
    assert raw in TRANSACTIONS.body([made("Basic", "b", raw)])


ids = st.from_regex("[A-Za-z0-9.-]{1,64}", fullmatch=True)


@given(st.lists(st.tuples(st.sampled_from(["Patient", "Observation"]), ids, st.binary(max_size=50)), min_size=1))
def test_the_size_of_a_body_is_known_before_it_is_made(given_ones: list[tuple[str, str, bytes]]) -> None:
    resources = [made(kind, identifier, raw) for kind, identifier, raw in given_ones]
    planned = TRANSACTIONS.envelope + sum(TRANSACTIONS.sizes(resources))
    assert len(TRANSACTIONS.body(resources)) == planned - 1  # the first entry has no comma before it
    most = sum(len(resource.raw) + TRANSACTIONS.most_overhead for resource in resources)
    assert sum(TRANSACTIONS.sizes(resources)) <= most


def test_too_large_halves_the_limit_but_not_for_ever() -> None:
    limits = Limits(100)
    assert limits.max_bytes == MAX_BODY == 5 * 1024 * 1024
    limits.too_large(4_000_000)
    assert limits.max_bytes == 2_000_000
    limits.too_large(4_500_000)
    assert limits.max_bytes == 2_000_000
    for _ in range(20):
        limits.too_large(limits.max_bytes)
    assert limits.max_bytes == MIN_BODY
