"""Section 8: classes of patients that cannot be told apart, and what coarser values would change."""

from __future__ import annotations

from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Value
from tasks.release_report.report.facts import Facts
from tasks.release_report.report.outline import Parts, fact, table
from tasks.release_report.report.risk import REGION, classes_of, risk_of
from tasks.shared.publication import HIDDEN, QUARTILES_FROM, known


def patients_apart(facts: Facts, show: Disclosure) -> Parts:
    """Yield section 8. Each row is a way to count: as it is, with birth years in bands, without the region."""
    if not facts.leaving.classes:
        yield "no-classes"
        return
    counted = facts.settings.quasi_identifiers
    regions = REGION in counted and any(region for _, _, region in facts.leaving.classes)
    rows: list[list[Value]] = []
    withheld = False
    for name, years, region in (
        ("@as-it-is", 1, True),
        ("@years-5", 5, True),
        ("@years-10", 10, True),
        *((("@without-region", 1, False), ("@years-10-without-region", 10, False)) if regions else ()),
    ):
        risk = risk_of(classes_of(facts, years=years, region=region))
        cells = show.cells(risk.bands(show.k))
        many = known(risk.patients, show.k, rounded=show.recipient)[0] >= QUARTILES_FROM * show.k
        withheld = withheld or cells.other is not None
        rows.append([
            name,
            *(cells.shown.get(band, HIDDEN) for band in risk.bands(show.k)),
            risk.mean() if many else HIDDEN,
            risk.highest(show.k) or HIDDEN,
        ])  # fmt: skip
    yield "outside-knowledge"
    yield fact("quasi_identifiers", ", ".join(counted))
    if regions:
        yield fact("region_prefix", facts.settings.region_prefix)
    yield table("apart", rows, withheld=withheld)
