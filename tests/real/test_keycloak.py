"""Keycloak gives the tokens of a send, by OAuth 2.0 client credentials (docs/services.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.send.step import STEP
from tasks.shared.errors import TerminalError
from tests.peers import services
from tests.peers.data import patient, write
from tests.peers.job import configuration, context
from tests.peers.server import Reply, ScriptedServer, SeenRequest
from tests.real.conftest import Start
from tests.real.services import CLIENT, CLIENT_SECRET

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def test_a_token_of_keycloak_opens_the_server_behind_it(start: Start, tmp_path: Path) -> None:
    issuer = start("keycloak")
    write(tmp_path / "import" / "a.ndjson", patient("p"))
    store = services.FhirDouble()

    def guarded(seen: SeenRequest) -> Reply | None:
        """Let those in whose token Keycloak takes for an active one."""
        token = seen.headers.get("authorization", "").removeprefix("Bearer ")
        form = {"token": token, "client_id": CLIENT, "client_secret": CLIENT_SECRET}
        url = f"{issuer}/protocol/openid-connect/token/introspect"
        active = httpx.post(url, data=form, trust_env=False, timeout=60).json()["active"]
        return None if active else Reply(401)

    with ScriptedServer(store, guarded) as server:

        def send(**auth: Any) -> None:
            keys = {"oauth_issuer_uri": issuer, "oauth_client_id": CLIENT, "oauth_client_secret": CLIENT_SECRET}
            settings = {"send_as": "direct_resource_load", "url": server.url, "auth": keys | auth}
            config = configuration({"send": settings})
            STEP.run(context(tmp_path, "send", config, source=tmp_path / "import"))

        for auth, reference in (
            ({"oauth_client_secret": "canary"}, "oauth-client"), ({"oauth_client_id": "canary"}, "oauth-client"),
            ({"oauth_issuer_uri": issuer.replace("hospital", "nowhere")}, "oauth-issuer"),
        ):  # fmt: skip
            with pytest.raises(TerminalError) as caught:
                send(**auth)
            assert caught.value.reference == reference
            assert "canary" not in caught.value.render()
        assert store.resources == {}
        send(oauth_issuer_uri=f"{issuer}/")
    assert store.resources.keys() == {"Patient/p"}
