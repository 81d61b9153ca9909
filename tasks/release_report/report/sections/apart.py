"""Section 8: classes of patients that cannot be told apart, and what coarser values would change."""

from __future__ import annotations

from tasks.release_report.report.document import Section, Value
from tasks.release_report.report.facts import Facts
from tasks.release_report.report.risk import REGION, classes_of, risk_of
from tasks.release_report.report.teller import Teller, fact, table
from tasks.shared.publication import HIDDEN, QUARTILES_FROM, known


def section(facts: Facts, tell: Teller) -> Section:
    """Section 8. A row is one way to count: as it is, with birth years in bands, without the region if one is there."""
    if not tell.enough:
        return Section(number=8, name="apart", said=("too-few",))
    if facts.leaving.tables:
        return Section(number=8, name="apart", said=("not-of-tables",))
    if not facts.leaving.classes:
        return Section(number=8, name="apart", said=("no-classes",))
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
        cells = tell.cells(risk.bands(tell.k))
        many = known(risk.patients, tell.k, rounded=tell.recipient)[0] >= QUARTILES_FROM * tell.k
        withheld = withheld or cells.other is not None
        rows.append([
            name,
            *(cells.shown.get(band, HIDDEN) for band in risk.bands(tell.k)),
            risk.mean() if many else HIDDEN,
            risk.highest(tell.k) or HIDDEN,
        ])  # fmt: skip
    columns = ("classes", "alone", "with_few", "with_some", "with_many", "mean_risk", "highest_risk")
    given = [fact("quasi_identifiers", ", ".join(counted))]
    if regions:
        given.append(fact("region_prefix", facts.settings.region_prefix))
    return Section(
        number=8,
        name="apart",
        said=("outside-knowledge",),
        facts=tuple(given),
        tables=(table("apart", columns, rows, withheld=withheld),),
    )
