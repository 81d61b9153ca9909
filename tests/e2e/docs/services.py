"""The services that example configurations name: sandbox ones on loopback, open and asking for credentials."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deployments.sandbox.common.gate import RequiredCredentials
from deployments.sandbox.common.serve import Certificate, serve_in_thread
from deployments.sandbox.extraction.app import extraction_service
from deployments.sandbox.fhir.app import fhir_service
from deployments.sandbox.flattening.app import flattening_service
from deployments.sandbox.pseudonymization.app import pseudonymization_service
from deployments.sandbox.validation.app import validation_service
from tests.peers.oauth import IssuerSettings, OAuthIssuer

SECRET = "planted-4711"
"""The value of every variable of an example: no output may show it."""

BLOCKS = {
    "extraction": "extractor", "pseudonymizer": "pseudonymizer", "validation": "validation",
    "flattening": "flattening", "fhir": "send",
}  # fmt: skip
"""The services, and the block of the configuration that names them."""


@dataclass(frozen=True)
class ExampleServices:
    """Running services: URLs by name."""

    open: Mapping[str, str]
    guarded: Mapping[str, str]
    """The same services behind credentials."""
    encrypted: Mapping[str, str]
    """And behind TLS, with a certificate of a CA of their own."""
    others: Mapping[str, str]
    ca_bundle: Path
    issuer: OAuthIssuer

    def of(self, configuration: Mapping[str, Any]) -> dict[str, str]:
        """The services for an example: those with credentials where it has some, those with TLS where it has a CA."""
        guarded = self.encrypted if "tls" in configuration else self.guarded
        blocks = configuration["services"]
        return dict(self.others) | {
            name: (guarded if "auth" in blocks.get(block, {}) else self.open).get(name, "")
            for name, block in BLOCKS.items()
        }


@contextmanager
def services(directory: Path) -> Iterator[ExampleServices]:
    """Run them all while the block runs."""
    issuer = OAuthIssuer(IssuerSettings(client_secret=SECRET))
    gate = RequiredCredentials(username="sluice", password=SECRET, api_key=SECRET, accepts_token=issuer.accepts)
    certificate, bundle = certified(directory)
    with contextlib.ExitStack() as running:

        def url(app: Any, certificate: Certificate | None = None) -> str:
            return running.enter_context(serve_in_thread(app, certificate=certificate)).url

        yield ExampleServices(
            open={
                "extraction": url(extraction_service()),
                "pseudonymizer": url(pseudonymization_service()),
                "validation": url(validation_service()),
                "flattening": url(flattening_service()),
                "fhir": url(fhir_service()),
            },
            guarded={
                "extraction": url(extraction_service(gate=gate)),
                "pseudonymizer": url(pseudonymization_service(gate=gate)),
                "fhir": url(fhir_service(gate=gate)),
            },
            encrypted={"fhir": url(fhir_service(gate=gate), certificate)},
            others={"issuer": url(issuer.app), "export": url(Starlette(routes=[Route("/run-7/{name}", _export)]))},
            ca_bundle=bundle,
            issuer=issuer,
        )


def certified(directory: Path) -> tuple[Certificate, Path]:
    """Return a certificate of this machine, and the file of its private CA."""
    ca = trustme.CA()
    bundle, chain, key = directory / "ca.pem", directory / "chain.pem", directory / "key.pem"
    ca.cert_pem.write_to_path(os.fspath(bundle))
    leaf = ca.issue_cert("127.0.0.1")
    leaf.private_key_pem.write_to_path(os.fspath(key))
    for pem in leaf.cert_chain_pems:
        pem.write_to_path(os.fspath(chain), append=True)
    return Certificate(chain, key), bundle


async def _export(request: Request) -> Response:
    """Return an export: patients for everybody, the rest for those who bring the token."""
    name = request.path_params["name"]
    if name == "Patient.ndjson":
        return Response('{"resourceType": "Patient", "id": "p1"}\n', media_type="application/fhir+ndjson")
    if request.query_params.get("token") != SECRET:
        return Response("", 403)
    kind = name.removesuffix(".ndjson")
    text = f'{{"resourceType": "{kind}", "id": "o1", "status": "final", "code": {{"text": "x"}}}}\n'
    return Response(text, media_type="application/fhir+ndjson")
