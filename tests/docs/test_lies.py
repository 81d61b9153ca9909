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
    "Pseudonymization service: the synthetic resource": pseudonymizer.MADE_UP,
    "Flattening service": flattening.LIES,
    "Flattening service: the synthetic resource": flattening.MADE_UP,
    "Validation service": validation.LIES,
    "Validation service: the synthetic resource": validation.MADE_UP,
    "FHIR server": send.TRANSACTIONS,
    "Transfer endpoint": send.TRANSFERS,
    "S3-compatible store": send.OBJECTS,
    "OIDC provider": issuer.LIES,
}


HEAD = """# Lies

This page lists wrong answers of services and the reaction of Sluice to each. Every line is a test with an answer that
is wrong in one way. An error ends the step before the next one starts. It names file and line, group and batch, or URL,
and nothing from the wrong answer becomes part of the data. If Sluice cannot detect a wrong answer, the line gives the
reason.
"""
TABLE = """
## {service}

Sluice detects {noticed} of {all}.

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
    return lie.because if _warned(lie) else f"not detected: {lie.because}"


def _warned(lie: Lie) -> bool:
    return lie.because.startswith("gives a warning")


def test_the_page_of_lies_is_current_and_gives_a_reason_for_what_is_not_noticed() -> None:
    assert page() == (ROOT / "docs/lies.md").read_text(encoding="utf-8")
    assert all(lie.because for lies in SERVICES.values() for lie in lies.values() if lie.reference is None)


if __name__ == "__main__":
    print(page(), end="")
