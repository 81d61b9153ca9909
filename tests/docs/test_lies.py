"""``docs/lies.md`` is generated from the lies in the tests: ``python -m tests.docs.test_lies > docs/lies.md``."""

from __future__ import annotations

from tests.conftest import ROOT
from tests.peers.lies import Lie
from tests.tasks.extractor import test_liar as extraction
from tests.tasks.flattening import test_liar as flattening
from tests.tasks.http_import import test_liar as web
from tests.tasks.local_import import test_liar as local
from tests.tasks.pseudonymizer import test_liar as pseudonymizer
from tests.tasks.send import test_liar as send
from tests.tasks.shared.http import test_credentials as issuer
from tests.tasks.validation import test_liar as validation

SERVICES = {
    "Extraction server": extraction.LIES,
    "Web server": web.LIES,
    "Files of a directory": local.LIES,
    "Pseudonymization service": pseudonymizer.LIES,
    "Pseudonymization service: the made-up resource": pseudonymizer.MADE_UP,
    "Flattening service": flattening.LIES,
    "Flattening service: the made-up resource": flattening.MADE_UP,
    "Validation service": validation.LIES,
    "Validation service: the made-up resource": validation.MADE_UP,
    "FHIR server": send.TRANSACTIONS,
    "Transfer endpoint": send.TRANSFERS,
    "S3-compatible store": send.OBJECTS,
    "OIDC provider": issuer.LIES,
}


HEAD = """# Lies

For whoever must know what Sluice believes: each line is an answer of a service that is wrong in one way, and what
becomes of it. Each is a test. An error ends the step before the next one runs, and names file and line, group and
batch, or URL; nothing of the wrong answer becomes part of the data. What cannot be noticed has its reason there.
"""
TABLE = """
## {service}

{noticed} of {all} are noticed.

| The answer | What happens |
|---|---|
"""


def page() -> str:
    parts = [HEAD]
    for service, lies in SERVICES.items():
        noticed = sum(lie.reference is not None or _warned(lie) for lie in lies.values())
        parts.append(TABLE.format(service=service, noticed=noticed, all=len(lies)))
        parts += [f"| {name} | {_becomes(lie)} |\n" for name, lie in lies.items()]
    return "".join(parts)


def _becomes(lie: Lie) -> str:
    if lie.reference:
        return f"`{lie.reference}`"
    return lie.because if _warned(lie) else f"not noticed: {lie.because}"


def _warned(lie: Lie) -> bool:
    return lie.because.startswith("told as a warning")


def test_the_page_of_lies_is_current_and_gives_a_reason_for_what_is_not_noticed() -> None:
    assert page() == (ROOT / "docs/lies.md").read_text(encoding="utf-8")
    assert all(lie.because for lies in SERVICES.values() for lie in lies.values() if lie.reference is None)


if __name__ == "__main__":
    print(page(), end="")
