"""Build the report of the step: the table of groups and the warnings (document 3 §5; ``4-product.md`` §5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.flattening.routing import RoutingFacts
from tasks.flattening.tables import OUTPUT, Tables
from tasks.flattening.views import GroupView
from tasks.shared.files.data_directory import stored_bytes
from tasks.shared.report import StepReport


def result(
    files: Sequence[Path],
    views: Sequence[GroupView],
    tables: Tables,
    facts: RoutingFacts,
    warnings: Sequence[str],
    requests: int,
) -> StepReport:
    """Return the result of a step that read ``files``. ``details["groups"]`` is a flat object for each group."""
    groups = [_row(view, tables, place) for place, view in enumerate(views)]
    return StepReport(
        files=len(groups),
        resources_in=facts.resources,
        lines_in=facts.lines,
        bytes_in=stored_bytes(files),
        bytes_out=sum(row["bytes"] for row in groups),
        output=OUTPUT,
        warnings=(*warnings, *_warnings(views, tables, facts)),
        details={
            "groups": groups,
            "rows": sum(row["rows"] for row in groups),
            "unrouted": dict(sorted(facts.unrouted.items())),
            "left_out": dict(sorted(facts.left_out.items())),
            "routed_by": "profile and type" if facts.fallback else "Provenance",
            "requests": requests,
        },
    )


def by_type(what: str, counts: Mapping[str, int]) -> str:
    """Return a sentence about some of the resources."""
    return f"{what}: " + ", ".join(f"{kind} {n:,}" for kind, n in sorted(counts.items()))


def _row(view: GroupView, tables: Tables, place: int) -> dict[str, Any]:
    counts = tables.account(place).counts
    empty = [column.name for at, column in enumerate(view.columns) if not counts[f"filled {at}"]]
    return {
        "group": view.group_name,
        "file": tables[place].path.name,
        "rows": counts["rows"],
        "columns": len(view.columns),
        "resources": counts["resources"],
        "with_rows": counts["with_rows"],
        "batches": counts["batches"],
        "bytes": tables.size(place),
        "empty_columns": ", ".join(empty),
    }


def _warnings(views: Sequence[GroupView], tables: Tables, facts: RoutingFacts) -> Iterator[str]:
    if tables.again:
        yield (
            f"{tables.again:,} tables were made again: the input, the views, the service or the batch size is another "
            "one than before"
        )
    if facts.fallback:
        yield "no Provenance names a group of some resources: they were routed by profile and type"
    if facts.unrouted:
        yield by_type("resources that belong to no group", facts.unrouted)
    if facts.left_out:
        yield by_type("resources that belong only to groups that get no CSV", facts.left_out)
    if facts.derived_ids:
        yield f"resources without an id: {facts.derived_ids:,}; they got one derived from content and position"
    for place, view in enumerate(views):
        counts = tables.account(place).counts
        if counts["unknown"]:
            yield (
                f"group {view.group_name}: the service answered with columns that the view does not have "
                f"({counts['unknown']:,} of {counts['batches']:,} answers)"
            )
