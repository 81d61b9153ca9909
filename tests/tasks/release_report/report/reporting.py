"""A report of files on the disk: measured, and made in both copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from tasks.release_report.measure.delivery import Delivery, Measures, measure_delivery
from tasks.release_report.report.build import Copies, make
from tasks.release_report.report.facts import Destination, Facts
from tasks.shared.stop import Stop


@dataclass(frozen=True)
class Reported(Copies):
    """Both copies, and what they were made of."""

    measured: Measures


def report_of(job: Path, leaving: Sequence[Path], imported: Sequence[Path], **more: Any) -> Reported:
    """Both copies of a report on these files below the directory of a job; ``more`` are other facts."""
    destination = Destination("s3_upload", "store.example", bucket="b", encrypted=True)
    known: dict[str, Any] = {"job": "j", "project": "p", "destination": destination, "made": "2026-01-01T00:00:00Z"}
    facts = Facts(**(known | more))
    delivery = Delivery(
        base=job, leaving=leaving, imported=imported, k=facts.settings.k, today=date(2026, 11, 23), stop=Stop()
    )
    measured = measure_delivery(delivery)
    copies = make(facts, measured, job, Stop())
    return Reported(copies.in_house, copies.recipient, measured)
