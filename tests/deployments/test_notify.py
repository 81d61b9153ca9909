"""An address that could never be reached is found before anything is kept (docs/deployment.md, "Notifications")."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from prefect.exceptions import PrefectHTTPStatusError

from deployments.notify import _kept, _mails
from tasks.shared.errors import InputError, TerminalError

SECRET = "hush-hush"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "https://hooks.example.org/x",
        f"mailtos://me:{SECRET}@mail.example.org\nmore",
        pytest.param(f"mailtos://me:{SECRET}@mail:99999", marks=pytest.mark.slow),  # Apprise takes its time to begin
    ],
    ids=["empty", "no mail", "two lines", "no port"],
)
@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")  # in what Apprise imports
def test_no_mailbox_is_made_of_what_is_no_address_and_the_error_does_not_say_it(tmp_path: Path, address: str) -> None:
    file = tmp_path / "mail.url"
    file.write_text(address)
    with pytest.raises(InputError) as refused:
        _mails(file)
    assert refused.value.reference == "notify-address"
    assert SECRET not in refused.value.render()


@pytest.mark.slow
def test_a_server_that_refuses_the_block_quotes_it_and_the_error_does_not() -> None:
    request = httpx.Request("POST", "http://127.0.0.1/api/block_documents/")
    answer = httpx.Response(422, request=request, json={"request_body": {"data": {"url": f"https://x/{SECRET}"}}})

    class Refused:
        def save(self, name: str, *, overwrite: bool) -> None:
            error = httpx.HTTPStatusError("422", request=request, response=answer)
            raise PrefectHTTPStatusError.from_httpx_error(error)

    with pytest.raises(PrefectHTTPStatusError, match=SECRET):
        Refused().save("sluice-notify", overwrite=True)
    with pytest.raises(TerminalError) as refused:
        _kept(Refused(), "sluice-notify")
    assert refused.value.reference == "prefect-refused"
    assert refused.value.__suppress_context__
    assert SECRET not in refused.value.render()
