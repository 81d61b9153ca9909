"""What it takes to de-identify chunks, in this process or in another one: settings, credentials, rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from config import RetryConfig, TlsConfig
from config.services import PseudonymizerConfig
from tasks.pseudonymizer.client import Deidentify
from tasks.pseudonymizer.deidentification import Deidentification, Deidentified
from tasks.pseudonymizer.rules import AnonymizationRules
from tasks.pseudonymizer.splitting import Chunk
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.http.client import ServiceClient
from tasks.shared.progress import RequestStats
from tasks.shared.stop import Stop


@dataclass(frozen=True, repr=False)
class Pseudonymizing:
    """The work of the step on one chunk: ``tasks.shared.processes.Work``.

    ``state`` is the directory of the step's own files. ``sleep`` (seconds) is a seam for tests.
    """

    settings: PseudonymizerConfig
    tls: TlsConfig
    retry: RetryConfig
    rules: AnonymizationRules | None
    state: Path
    sleep: Callable[[float], None] | None = None

    def probe(self, stop: Stop, stats: RequestStats) -> None:
        """``Deidentify.probe``, before there is any data to send."""
        with self._service(1, stop, stats) as service:
            service.probe()

    @contextmanager
    def opened(self, *, slots: int, stop: Stop, stats: RequestStats) -> Iterator[Callable[[Chunk], Deidentified]]:
        """De-identifies chunks, until the context is left."""
        with self._service(slots, stop, stats) as service:
            removes = self.rules is not None and self.rules.removes
            yield Deidentification(service, FailedAnswers(self.state), removes=removes)

    @contextmanager
    def _service(self, slots: int, stop: Stop, stats: RequestStats) -> Iterator[Deidentify]:
        with ServiceClient(
            "pseudonymizer",
            tls=self.tls,
            retry=self.retry,
            auth=self.settings.auth,
            credentials_origin=str(self.settings.url),
            timeout=self.settings.timeout.total_seconds(),
            stop=stop,
            stats=stats,
            max_connections=slots,
            sleep=self.sleep,
        ) as client:
            yield Deidentify(client, str(self.settings.url), self.rules, slots=slots)
