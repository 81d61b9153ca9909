"""OAuth 2.0 client credentials with Keycloak, the issuer at most hospitals (document 3 §1, "OAuth 2.0").

Its own administration API is the service behind it: it lets nobody in whose token it has not signed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from config import AuthConfig
from tasks.shared.errors import ServiceError
from tasks.shared.http.client import ServiceClient
from tests.conftest import free_ports
from tests.peers.client import Sleeps, client
from tests.real.programs import HOST, directory, program, running, scratch
from tests.real.shared import for_all_workers

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

HOW = "python tests/real/get.py keycloak"
REALM = "hospital"
CLIENT = "sluice: test"
SECRET = "s3cret/with+signs & spaces:%=ü"

_REALM = {
    "realm": REALM,
    "enabled": True,
    "sslRequired": "none",
    "accessTokenLifespan": 60,
    "clients": [
        {"clientId": CLIENT, "secret": SECRET, "serviceAccountsEnabled": True, "standardFlowEnabled": False},
        {"clientId": "people-only", "secret": SECRET, "serviceAccountsEnabled": False},
    ],
    "users": [
        {
            "username": "service-account-sluice",
            "enabled": True,
            "serviceAccountClientId": CLIENT,
            "clientRoles": {"realm-management": ["view-users"]},
        }
    ],
}


@dataclass(frozen=True)
class Keycloak:
    """A running Keycloak."""

    url: str

    def auth(self, client_id: str = CLIENT, secret: str = SECRET, realm: str = REALM) -> AuthConfig:
        return AuthConfig.model_validate(
            {
                "oauth_issuer_uri": f"{self.url}/realms/{realm}",
                "oauth_client_id": client_id,
                "oauth_client_secret": secret,
            }
        )

    def reading(self, auth: AuthConfig, sleep: Sleeps | None = None) -> ServiceClient:
        return client(auth=auth, credentials_origin=self.url, sleep=sleep or Sleeps())

    def read(self, http: ServiceClient) -> int:
        """Something that only a token of the client opens."""
        return http.send("GET", f"{self.url}/admin/realms/{REALM}/users/count", operation="read").status


@contextmanager
def keycloak_running() -> Iterator[str]:
    program("java", "SLUICE_REAL_JAVA", "install a JDK, 17 or newer")
    given = directory("SLUICE_REAL_KEYCLOAK", "bin/kc.sh", HOW)
    with scratch() as home:
        shutil.copytree(given, home / "keycloak")  # it builds itself anew when it starts
        (home / "keycloak" / "data" / "import").mkdir(parents=True, exist_ok=True)
        (home / "keycloak" / "data" / "import" / "realm.json").write_text(json.dumps(_REALM))
        port = free_ports(2)
        start = (home / "keycloak" / "bin" / "kc.sh", "start-dev", "--import-realm", "--db=dev-mem")
        where = (f"--http-host={HOST}", f"--http-port={port}", f"--http-management-port={port + 1}")
        heap = {"JAVA_OPTS_KC_HEAP": "-Xmx512m -XX:TieredStopAtLevel=1"}
        with running("Keycloak", (*start, *where), home / "log", environ=heap, port=port, seconds=280):
            yield f"http://{HOST}:{port}"


@pytest.fixture(scope="module")
def keycloak(session_directory: Path) -> Iterator[Keycloak]:
    with for_all_workers(session_directory / "keycloak", keycloak_running) as url:
        yield Keycloak(url)


def test_a_token_of_keycloak_opens_what_is_behind_it(keycloak: Keycloak) -> None:
    with keycloak.reading(keycloak.auth()) as http:
        assert [keycloak.read(http) for _ in range(3)] == [200] * 3
    with client() as http, pytest.raises(ServiceError) as caught:
        keycloak.read(http)
    assert caught.value.status == 401


def test_a_slash_at_the_end_of_the_issuer_does_not_matter(keycloak: Keycloak) -> None:
    with keycloak.reading(keycloak.auth(realm=f"{REALM}/")) as http:
        http.authorize()


@pytest.mark.parametrize(
    ("client_id", "secret"),
    [(CLIENT, "canary"), ("nobody-canary", SECRET), ("people-only", SECRET)],
    ids=["wrong secret", "unknown client", "client without a service account"],
)
def test_a_client_that_keycloak_refuses_is_a_terminal_error(keycloak: Keycloak, client_id: str, secret: str) -> None:
    sleeps = Sleeps()
    with keycloak.reading(keycloak.auth(client_id, secret), sleeps) as http, pytest.raises(ServiceError) as caught:
        keycloak.read(http)
    assert caught.value.reference == "oauth-client"
    assert "client credentials grant" in (caught.value.hint or "")
    assert "canary" not in caught.value.render()
    assert sleeps == []


def test_a_missing_realm_is_a_terminal_error_with_the_form_of_an_issuer(keycloak: Keycloak) -> None:
    sleeps = Sleeps()
    with keycloak.reading(keycloak.auth(realm="nowhere"), sleeps) as http, pytest.raises(ServiceError) as caught:
        http.authorize()
    assert (caught.value.reference, caught.value.status) == ("oauth-issuer", 404)
    assert "/realms/<realm>" in (caught.value.hint or "")
    assert sleeps == []
