"""What the step reports: the table of groups, and what a person should know (document 3 §5; ``4-product.md`` §5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.flattening.resume import OUTPUT, Tables
from tasks.flattening.routing import Facts
from tasks.flattening.views import View
from tasks.shared.report import StepReport


def result(views: Sequence[View], tables: Tables, facts: Facts, warnings: Sequence[str], requests: int) -> StepReport:
    """The result of a finished step. ``details["groups"]`` is a table: a flat object for each group."""
    groups = [_row(view, tables, place) for place, view in enumerate(views)]
    return StepReport(
        files=sum(1 + ("parquet_bytes" in row) for row in groups),
        resources_in=facts.resources,
        lines_in=facts.lines,
        bytes_in=facts.bytes,
        bytes_out=sum(row["bytes"] + row.get("parquet_bytes", 0) for row in groups),
        output=OUTPUT,
        warnings=(*warnings, *_warnings(views, tables, facts)),
        details={
            "groups": groups,
            "rows": sum(row["rows"] for row in groups),
            "unrouted": dict(sorted(facts.unrouted.items())),
            "left_out": dict(sorted(facts.left_out.items())),
            "repeated": facts.repeated,
            "routed_by": "profile and type" if facts.fallback else "Provenance",
            "requests": requests,
        },
    )


def by_type(counts: Mapping[str, int]) -> str:
    """Counts of resources, for a sentence."""
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))


def _row(view: View, tables: Tables, place: int) -> dict[str, Any]:
    counts = tables.account(place).counts
    empty = [column.name for at, column in enumerate(view.columns) if not counts[f"filled {at}"]]
    parquet = tables.parquet.size(place)
    return {
        "group": view.group_name,
        "file": tables[place].path.name,
        "rows": counts["rows"],
        "columns": len(view.columns),
        "resources": counts["resources"],
        "with_rows": counts["with_rows"],
        "batches": counts["batches"],
        "bytes": tables.size(place),
        **({} if parquet is None else {"parquet_bytes": parquet}),
        "empty_columns": ", ".join(empty),
    }


def _warnings(views: Sequence[View], tables: Tables, facts: Facts) -> Iterator[str]:
    if tables.again:
        yield (
            f"{tables.again:,} tables were made again: the input, the views, the service or the batch size is another "
            "one than before"
        )
    if facts.fallback:
        yield "the data has no Provenance that names a group: resources were routed by profile and type"
    if facts.unrouted:
        yield f"{sum(facts.unrouted.values()):,} resources belong to no group ({by_type(facts.unrouted)})"
    if facts.left_out:
        yield (
            f"{sum(facts.left_out.values()):,} resources belong only to groups that get no CSV "
            f"({by_type(facts.left_out)})"
        )
    if facts.derived_ids:
        yield f"{facts.derived_ids:,} resources had no id; they got one derived from content and position"
    for place, view in enumerate(views):
        if tables.account(place).counts["unknown"]:
            yield f"group {view.group_name}: the service answered with columns that the view does not have"
        if as_text := tables.parquet.as_text(place):
            yield (
                f"group {view.group_name}: values are not of the type of their column: text in the Parquet file "
                f"({', '.join(as_text)})"
            )
