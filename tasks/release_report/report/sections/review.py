"""Sections 9 and 10: what was not checked, and the decision."""

from __future__ import annotations

from tasks.release_report.report import changes
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.outline import Parts, fact
from tasks.release_report.report.sections.query import consent_not_checked


def unchecked(facts: ReportFacts, _: Disclosure) -> Parts:
    """Yield section 9. Never empty: some things no program checks."""
    leaving, imported, asked = facts.leaving, facts.imported, facts.query
    yield from ("unread-text", "unread-pictures", "outside-knowledge", "rare-combinations")
    conditions = {
        "originals-unchecked": imported is None,
        "corrected-uncompared": bool(facts.corrected),
        "bounds-reached": imported is not None and bool(imported.others or leaving.others),
        **dict.fromkeys(changes.uncompared(facts), True),
        "files-unread": leaving.unread or (imported is not None and imported.unread),
        "tables-by-column": leaving.tables,
        "not-validated": facts.step_with("validation") is None,
        "no-query": asked is None,
        consent_not_checked(facts): asked is not None and facts.consent != "@consent-checked",
        "consent-dates": facts.consent == "@consent-checked",
        "origin-unknown": facts.step_with("extractor") is None,
    }
    yield from (name for name, holds in conditions.items() if holds)


def decision(facts: ReportFacts, _: Disclosure) -> Parts:
    """Yield section 10: that nobody is asked before the data leave, and what a stop does. Who decided stands in
    ``decisions``.
    """
    if facts.destination is not None and not facts.decides:
        yield "nobody-asked"
        yield fact("on_stop", f"@{facts.settings.on_stop}")
