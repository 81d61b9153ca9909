"""The facts of a job for its release report: the destination, the query, and the reports of the steps."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from config import PipelineConfig, SendMode
from tasks.release_report.document import Decided
from tasks.release_report.query import Query, ServerSummary, read_query, read_rules, read_summary
from tasks.shared.file_work import Done, read_records, records_of
from tasks.shared.files.inventory import Inventory
from tasks.shared.report import StepReport

SUMMARY: Final = Path("extraction", "reports", "job-summary.json")
_COUNTING: Final = {
    "extractor": "imported", "local_import": "imported", "http_import": "imported", "pseudonymizer": "back",
}  # fmt: skip
"""Step that counts patients → name of the text for its count."""

VIEWS: Final = Path("viewdefinitions")


@dataclass(frozen=True)
class Destination:
    """Where the data are sent, without user, password, query or fragment. ``host`` has its port where one is given.

    ``private``: a private address, or a name without a dot.
    """

    mode: str
    host: str = ""
    path: str = ""
    bucket: str = ""
    prefix: str = ""
    project: str = ""
    organization: str = ""
    encrypted: bool = True
    private: bool = False

    @property
    def shown(self) -> str:
        """Return the destination on one line."""
        place = "/".join(part.strip("/") for part in (self.bucket, self.prefix) if part)
        return f"{place} ({self.host})" if place else self.host + self.path


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """The facts of a job.

    ``step`` is the position of the wait, or of the step that sends; ``None`` at the end. ``inside``: a further step of
    the hospital processes the data before they are sent. ``asks``: a person decides before the data are sent.
    ``corrected``: the files are a person's corrections. ``left`` is the inventory of the step that wrote the files,
    ``None`` if it is not known. ``sent`` is when sending began, if the data have left.
    """

    job: str
    project: str
    directory: Path
    config: PipelineConfig
    made: str
    step: int | None = None
    steps: Sequence[StepReport] = ()
    crtdl: Path | None = None
    inside: bool = False
    asks: bool = False
    corrected: bool = False
    left: Inventory | None = None
    decisions: Sequence[Decided] = ()
    sent: str | None = None

    @cached_property
    def destination(self) -> Destination | None:
        """Return where the data are sent next; ``None`` if they are not."""
        return None if self.inside else destination_of(self.config)

    @cached_property
    def query(self) -> Query | None:
        """Return the effective query."""
        return read_query(self.crtdl)

    @cached_property
    def summary(self) -> ServerSummary | None:
        """Return the counts of the extraction server; ``None`` without an extraction."""
        return read_summary(self.directory / SUMMARY) if self.done("extractor") else None

    @cached_property
    def rules(self) -> tuple[str, str] | None:
        """Return name and SHA-256 of the pseudonymization rules, if a step used them."""
        return read_rules(self.config.services.pseudonymizer.anonymization_config) if self.pseudonymized else None

    @property
    def kept(self) -> frozenset[str]:
        """Return the identifier systems and paths that are kept on purpose."""
        return frozenset(self.config.services.pseudonymizer.kept_identifiers)

    @property
    def pseudonymized(self) -> bool:
        """Return whether a step of this job pseudonymized the data."""
        return self.done("pseudonymizer") is not None

    def done(self, name: str) -> StepReport | None:
        """Return the last completed step of this name."""
        found = [step for step in self.steps if step.name == name and step.state == "completed"]
        return found[-1] if found else None

    def tally(self, kind: str) -> Mapping[str, int]:
        """Return path or type → lines, of one kind of finding of the pseudonymizer step."""
        found: Counter[str] = Counter()
        for record in self._records("pseudonymizer"):
            found.update(record.tallies.get(kind, {}))
        return found

    @property
    def dates_sampled(self) -> bool:
        """Return whether the pseudonymizer step left out lines when it compared dates: it does behind the first 100."""
        return any(record.counts.get("lines", 0) > 100 for record in self._records("pseudonymizer"))

    def _records(self, name: str) -> list[Done]:
        step = self.done(name)
        return read_records(records_of(self.directory, step.position)) if step is not None else []

    @property
    def consent(self) -> str:
        """Return the name of the text about consent."""
        if self.query is None:
            return "no-query"
        if not self.query.asks_for_consent:
            return "consent-not-asked"
        return "consent-checked" if self.summary is not None else "consent-unchecked"

    @property
    def patients(self) -> list[tuple[str, int]]:
        """Return (name of a text, number of patients) of the steps so far, in their order."""
        summary = self.summary or ServerSummary()
        found = [("in-cohort", summary.cohort), ("extracted", summary.final)]
        for name, word in _COUNTING.items():
            number = sum(record.patients for record in self._records(name))
            found += [(word, number)] if number else []
        return [(word, number) for word, number in found if number is not None]


def destination_of(config: PipelineConfig) -> Destination | None:
    """Return where the data are sent; ``None`` if no step sends them."""
    send = config.services.send
    if "send" not in config.pipeline.enabled_steps or send.send_as is None:
        return None
    s3 = send.s3 if send.send_as is SendMode.S3_UPLOAD else None
    url = urlsplit((s3.endpoint if s3 else send.url) or "")
    name, port = url.hostname or "", f":{url.port}" if url.port else ""
    if s3 and not name:
        name = f"s3.{s3.region}.amazonaws.com" if s3.region else "s3.amazonaws.com"
    transfer = send.transfer if send.send_as is SendMode.TRANSFER_LOAD else None
    return Destination(
        mode=send.send_as.value,
        host=(f"[{name}]" if ":" in name else name) + port,
        path=url.path.rstrip("/"),
        bucket=(s3.bucket or "") if s3 else "",
        prefix=(s3.prefix or "") if s3 else "",
        project=(transfer.project_identifier or "") if transfer else "",
        organization=(transfer.organization_identifier or "") if transfer else "",
        encrypted=url.scheme != "http",
        private=_is_private(name),
    )


def settings_digest(facts: JobFacts) -> str:
    """Return the SHA-256 of everything that a report depends on besides the files and the steps that wrote them."""
    settings = facts.config.report.model_dump(mode="json", exclude={"enabled", "on_stop"})
    validated = [len(one.warnings) for one in facts.steps if one.name == "validation" and one.state == "completed"]
    known = [settings, asdict(facts.destination) if facts.destination else None, sorted(facts.kept), validated]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _is_private(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_private
    except ValueError:
        return "." not in host or host.endswith((".localhost", ".local", ".internal"))
