"""The type, id and entries of a resource that is sent or comes back."""

from __future__ import annotations

import pytest

from tasks.pseudonymizer.answer_check import OutlineError, outline_of


@pytest.mark.parametrize(
    "text",
    [
        b"<html>CANARY</html>", b"", b"[]", b"null", b'{"resourceType":"CANARY"', b'{"resourceType":"P","a":"\xff"}',
        b'{"resourceType":"P","a":"\n"}', b"{}", b'{"resourceType":"Bundle","entry":{}}', b"[" * 100_000,
        b'{"resourceType":"P","a":"' + "ü".encode() * 600_000 + b'\xc3"}', b'{"resourceType":"P","id":7}',
    ],
)  # fmt: skip
def test_what_is_no_resource_is_refused_without_quoting_it(text: bytes) -> None:
    with pytest.raises(OutlineError) as caught:
        outline_of(text)
    assert "CANARY" not in str(caught.value)


def test_other_resources_may_have_an_entry_of_another_shape() -> None:
    assert outline_of(b'{"resourceType":"List","entry":[{"item":{}}]}').resources == 1
    assert outline_of(b'{"resourceType":"Linkage","id":"x","entry":7}').resources == 1
    long = '{"resourceType":"P","a":"' + "ü" * 1_200_001 + '€"}'
    assert outline_of(long.encode()).type == "P"
