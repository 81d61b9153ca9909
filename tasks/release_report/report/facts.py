"""All facts of the release report besides its words: measurements, counts, the query and the decisions.

All numbers are exact. Only ``build`` makes published values of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from config import PipelineConfig, ReportConfig, SendMode
from tasks.release_report.measure.measured import Measured
from tasks.release_report.report.document import Decided
from tasks.release_report.report.query import EffectiveQuery
from tasks.shared.report import StepReport

if TYPE_CHECKING:
    from config import AuthConfig


@dataclass(frozen=True)
class Destination:
    """Destination of the data in the configuration, without user, password, query or fragment.

    ``host`` has its port where one is given. ``private`` is true for a private address or a name without a dot.
    ``encrypted`` is ``None`` if unknown.
    """

    mode: str
    host: str = ""
    path: str = ""
    bucket: str = ""
    project: str = ""
    organization: str = ""
    encrypted: bool | None = None
    private: bool = False
    authentication: str = "none"

    @property
    def shown(self) -> str:
        """Text of the tile, one line."""
        return (
            self.host + self.path if not self.bucket else f"{self.bucket} ({self.host})" if self.host else self.bucket
        )


@dataclass(frozen=True)
class Corrected:
    """A file that a person put in the place of one of the pipeline's: when (UTC), and whose it is on the disk."""

    name: str
    when: str = ""
    user: str = ""


@dataclass(frozen=True)
class RulesSummary:
    """The anonymization file: its name, its SHA-256 (hex), and whether a rule removes whole resources."""

    name: str
    sha256: str
    removes: bool = False


@dataclass(frozen=True, kw_only=True)
class ReportFacts:
    """Input of ``build``. ``make`` adds the measurements and what is read from the job directory.

    ``step`` is the position of the wait, ``None`` at the end. ``steps`` have details and warnings once they ran.
    ``imported`` is ``None`` if ``import/`` could not be compared. ``query`` is the effective one. ``changed`` are files
    that changed after they were checked. ``kept`` are the systems and paths of
    ``services.pseudonymizer.kept_identifiers``. ``asked_patients`` is the length of the given list of patients.
    ``decides`` is true if a person
    decides before the data are sent, ``sent`` if they were sent. ``files`` is the digest over the data to be sent.
    """

    job: str
    project: str
    made: str
    step: int | None = None
    settings: ReportConfig = field(default_factory=ReportConfig)
    destination: Destination | None = None
    query: EffectiveQuery | None = None
    rules: RulesSummary | None = None
    kept: tuple[str, ...] = ()
    steps: Sequence[StepReport] = ()
    corrected: Sequence[Corrected] = ()
    changed: Sequence[str] = ()
    decisions: Sequence[Decided] = ()
    asked_patients: int | None = None
    decides: bool = False
    sent: bool = False
    leaving: Measured = field(default_factory=Measured)
    imported: Measured | None = None
    files: str = ""

    @property
    def around(self) -> list[tuple[str, int]]:
        """Figures around the number of patients, in the order of the steps."""
        extraction = self.step_with("extractor")
        details = extraction.details if extraction is not None else {}
        figures = (
            ("@asked-for", self.asked_patients),
            ("@in-cohort", details.get("cohort_patients")),
            ("@extracted", details.get("final_patients")),
            ("@in-import", self.imported.patients if self.imported is not None else None),
        )
        return [(name, figure) for name, figure in figures if isinstance(figure, int)]

    @property
    def consent(self) -> str:
        """Return the word for what became of consent: asked for by the query or not, checked by this job or not."""
        if self.query is None:
            return "@no-query"
        if not self.query.asks_for_consent:
            return "@consent-not-asked"
        return "@consent-checked" if self.step_with("extractor") is not None else "@consent-unchecked"

    @property
    def query_not_applied(self) -> bool:
        """True if there is a query that no extraction of this job applied."""
        return self.query is not None and self.step_with("extractor") is None

    def step_with(self, name: str) -> StepReport | None:
        """Return the last completed step with this role."""
        done = [step for step in self.steps if step.name == name and step.state == "completed"]
        return done[-1] if done else None


def destination_of(config: PipelineConfig) -> Destination | None:
    """Return where the data are sent; ``None`` if no step sends them."""
    send = config.services.send
    if not any(step == "send" for step in config.pipeline.enabled_steps) or send.send_as is None:
        return None
    s3 = send.send_as is SendMode.S3_UPLOAD
    url = urlsplit((send.s3.endpoint if s3 else send.url) or "")
    name, port = url.hostname or "", f":{url.port}" if url.port else ""
    if s3 and not name:
        name = f"s3.{send.s3.region}.amazonaws.com" if send.s3.region else "s3.amazonaws.com"
    transfer = send.transfer if send.send_as is SendMode.TRANSFER_LOAD else None
    return Destination(
        mode=send.send_as.value,
        host=(f"[{name}]" if ":" in name else name) + port,
        path=url.path.rstrip("/"),
        bucket=(send.s3.bucket or "") + (f"/{send.s3.prefix}" if send.s3.prefix else "") if s3 else "",
        project=(transfer.project_identifier or "") if transfer else "",
        organization=(transfer.organization_identifier or "") if transfer else "",
        encrypted=url.scheme != "http",
        private=is_private(name),
        authentication="s3" if s3 else authentication(send.auth),
    )


def authentication(auth: AuthConfig) -> str:
    """Return the kind of credentials: ``none``, ``basic``, ``oauth2``, or one of them with an API key."""
    if auth.api_key is None:
        return auth.scheme
    return "api_key" if auth.scheme == "none" else f"{auth.scheme}_and_api_key"


def is_private(host: str) -> bool:
    """Return whether a host is a private address, this machine, or a name without a dot (of a local network)."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return "." not in host or host.endswith((".localhost", ".local", ".internal"))
    return address.is_private or address.is_loopback or address.is_link_local
