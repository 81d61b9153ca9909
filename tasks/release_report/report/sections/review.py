"""Sections 13 to 18: validation, what was not checked, warnings, the last report, the decision, the rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from config import Role, has_role
from tasks.release_report.measure.cells import Bounds, Cell
from tasks.release_report.publication import HIDDEN, ROUNDED_TO, Count, count, rounded, without_numbers
from tasks.release_report.report import changes
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import ReportFinding, ReportSection, Value
from tasks.release_report.report.facts import OTHERS, ReportFacts
from tasks.release_report.report.outline import TABLES, Parts, fact, table
from tasks.release_report.report.sections.query import consent_not_checked

_NAME = re.compile(r"[\w.-]{1,100}")


def validation(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 13: severity × type × profile × message id, with patients where a line is one patient's."""
    steps = [step for step in facts.steps if has_role(step.name, Role.VALIDATE) and step.state == "completed"]
    if not steps:
        yield "not-validated"
        return
    if not show.enough:
        yield "too-few"
        return
    pseudonymized = [step.position for step in facts.steps if has_role(step.name, Role.PSEUDONYMIZE)]
    if pseudonymized:
        before = max(step.position for step in steps) < min(pseudonymized)
        yield "before-pseudonymization" if before else "after-pseudonymization"
    if not any(step.details.get("findings") for step in steps):
        yield "validation-silent"
    rows: list[list[Value]] = []
    withheld = False
    for one in facts.validated:
        for (severity, kind, message), by_profile in sorted(one.findings.items()):
            said_, left_out = _by_profile(by_profile, facts, show)
            if not _NAME.fullmatch(message or "-"):
                said_, left_out = [], True
            withheld = withheld or left_out
            finding = (one.position, f"@severity-{severity}", show.type(kind))
            rows += [[*finding, profile, message, patients] for profile, patients in said_]
    yield table("validation", rows, withheld=withheld)


def _by_profile(
    patients: Mapping[str, Cell], facts: ReportFacts, show: Disclosure
) -> tuple[list[tuple[str, Count]], bool]:
    """R4 and R7: the patients of a finding by the profile of their resources, and whether any were left out.

    What few have, and what has a name that few know, are "other profiles". Where resources claim one profile each they
    are disjoint cells.
    """
    numbers = {profile: cell.patients for profile, cell in patients.items()}
    shown = show.cells(numbers).numbers
    named = {profile: name for profile in shown if (name := _profile(profile, numbers[profile], facts, show))}
    order = sorted(named, key=lambda profile: (-rounded(numbers[profile]), named[profile]))
    rows = [
        # R11: of a text from the data "all" is said as of a code.
        (name, show.count(shown[profile]) if name.startswith("@") else show.coded(shown[profile], name))
        for profile in order
        for name in [named[profile]]
    ]
    rest, bounds = Cell(), Bounds()
    for profile, cell in patients.items():
        if profile not in named:
            rest.merge(cell, bounds)
    if rest.patients >= show.k:
        rows.append(("@other-profiles", show.count(rest.patients)))
    return rows, rest.patients < show.k and (rest.patients > 0 or not rows)


def _profile(profiles: str, patients: int, facts: ReportFacts, show: Disclosure) -> str | None:
    """R7: the profiles of a resource; those that the query names are free."""
    if not profiles:
        return "@no-profile"
    asked = {group.profile.partition("|")[0] for group in facts.query.groups} if facts.query is not None else set()
    names = profiles.split(" ")
    free = all(one in asked or show.text(one, patients) for one in names)
    # A text that begins so would be taken for a word of the page's.
    return ", ".join(names) if free and profiles != OTHERS and not profiles.startswith("@") else None


def unchecked(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 14. Never empty: some things no program checks."""
    leaving, imported, asked = facts.leaving, facts.imported, facts.query
    yield from ("unread-text", "unread-pictures", "outside-knowledge", "rare-combinations")
    conditions = {
        "originals-unchecked": imported is None,
        "bounds-reached": imported is not None and bool(imported.others or leaving.others),
        **dict.fromkeys(changes.uncompared(facts), True),
        "files-unread": leaving.unread or (imported is not None and imported.unread),
        "tables-by-column": leaving.tables,
        "not-validated": facts.step_with(Role.VALIDATE) is None,
        "no-query": asked is None,
        consent_not_checked(facts): asked is not None and facts.consent != "@consent-checked",
        "consent-dates": facts.consent == "@consent-checked",
        "origin-unknown": facts.step_with(Role.EXTRACT) is None,
        "first-of-query": facts.last is None and not show.recipient,
    }
    yield from (name for name, holds in conditions.items() if holds)


def warnings(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 15. The steps' sentences are without numbers, and without names of files of few patients."""
    done = [step for step in facts.steps if step.state == "completed"]
    rows = [(step.position, step.name, step.retries or 0, len(step.warnings)) for step in done]
    texts = [(step.position, step.name, _safe(text, facts, show)) for step in done for text in step.warnings]
    # Who works in the hospital is not the recipient's to know.
    corrected = [(show.file(one.name), one.when, None if show.recipient else one.user) for one in facts.corrected]
    if not texts:
        yield "no-warnings"
    yield table("steps", rows)
    yield table("warnings", texts, withheld=len(texts) > (TABLES["warnings"].most or 0))
    yield table("corrected", corrected)


def _safe(text: str, facts: ReportFacts, show: Disclosure) -> str:
    """R7 and R1: a warning without names of files that few patients share, and without its numbers."""
    files = [*facts.leaving.files, *(facts.imported.files if facts.imported is not None else ())]
    for name in sorted({file.name for file in files}, key=len, reverse=True):
        last = name.rpartition("/")[2]
        for spelling in (name, last):
            if spelling in text and show.file(name) != name:
                text = text.replace(spelling, "…")
    return without_numbers(text)[:300]


def compared(facts: ReportFacts, show: Disclosure, found: tuple[ReportFinding, ...]) -> Parts:
    """Yield section 16: the last report of this query beside this one, both after R3 to R5 (R10)."""
    last = facts.last
    if last is None:
        yield "first-of-query"
        return
    patients = last.tiles.patients
    before = {one.key: one for one in last.findings}
    now = {one.key: one for one in found}
    new = [("@new", one) for key, one in now.items() if key not in before]
    gone = [("@gone", one) for key, one in before.items() if key not in now]
    known = last.k >= show.k  # R7: else fewer than k may have what is gone
    rows = [
        (change, f"@{one.level}", f"@{one.code}", one.about if known or change == "@new" or not one.about else HIDDEN)
        for change, one in [*new, *gone]
    ]
    rules = facts.rules.sha256 if facts.rules is not None else None
    if not rows:
        yield "nothing-new"
    yield fact("last_job", last.job)
    yield fact("last_made", last.made)
    yield fact("last_patients", count(patients, show.k) if isinstance(patients, int) else patients)
    yield fact("same_files", last.files == facts.files)
    yield fact("same_rules", last.fact("rules_sha256") == rules)
    yield fact("same_query", last.fact("query_sha256") == (facts.query.sha256 if facts.query else None))
    yield fact("same_k", last.k == show.k)
    yield fact("same_versions", {str(row[0]): str(row[1]) for row in last.rows("versions")} == dict(facts.versions))
    yield table("changes", rows)


def is_alike(facts: ReportFacts) -> bool:
    """Return whether the last report has the same kind of data, compared with ``import/`` or not."""
    if facts.last is None:
        return False
    tables = any("tables-leave" in one.said for one in facts.last.sections)
    compared_ = facts.last.fact("compared_with_import")
    return tables == facts.leaving.tables and compared_ == (facts.imported is not None)


def decision(facts: ReportFacts, _: Disclosure) -> Parts:
    """Yield section 17: how many people decide, or that nobody is asked before the data leave, and what a stop does.

    Who decided stands in ``decisions``, which are no part of what is decided on.
    """
    if facts.destination is not None and not facts.decides:
        yield "nobody-asked"
        yield fact("on_stop", f"@{facts.settings.on_stop}")
    else:
        yield fact("reviewers", facts.settings.reviewers)


def rules(facts: ReportFacts, show: Disclosure, others: Iterable[ReportSection]) -> Parts:
    """Yield section 18: how the numbers of this page are made."""
    yield "the-rules"
    yield fact("k", show.k)
    yield fact("rounded_to", ROUNDED_TO)
    yield fact("recipients_copy", show.recipient)
    yield fact("withheld", any(one.withheld for section in others for one in section.tables))
    yield fact("compared_with_import", facts.imported is not None)
    yield table("versions", sorted(facts.versions.items()))
