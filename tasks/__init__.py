"""The catalogue of steps: name → what it reads, writes and requires, and where its Prefect task is.

Document 1, "pipeline". Importing this package imports no step and no Prefect.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """One kind of step.

    ``output`` is the directory its data goes to, below the job directory; ``None`` when it produces no data of its own.
    ``task`` is ``module:attribute`` of its Prefect task; ``None`` when this version cannot run it.
    """

    name: str
    summary: str
    output: str | None = None
    is_import: bool = False
    requires_crtdl: bool = False
    writes: tuple[str, ...] = ()
    task: str | None = None

    @property
    def available(self) -> bool:
        """Whether this version can run the step."""
        return self.task is not None

    def load(self) -> Any:
        """The Prefect task. Imports Prefect."""
        if self.task is None:
            raise LookupError(self.name)
        module, attribute = self.task.split(":")
        return getattr(importlib.import_module(module), attribute)


CATALOGUE: dict[str, Step] = {
    step.name: step
    for step in (
        Step("extractor", "import through the extraction server", "import", is_import=True, requires_crtdl=True,
             writes=("extraction",), task="tasks.extractor.step:extractor"),
        Step("local_import", "import from a local directory", "import", is_import=True,
             task="tasks.local_import.step:local_import"),
        Step("http_import", "import from an HTTP URL", "import", is_import=True,
             task="tasks.http_import.step:http_import"),
        Step("pseudonymizer", "pseudonymize through the pseudonymization service", "pseudonymized",
             writes=("pseudonymizer",), task="tasks.pseudonymizer.step:pseudonymizer"),
        Step("wait", "pause for manual inspection", task="tasks.wait.step:wait"),
        Step("validation", "validate FHIR data against profiles", writes=("validation",),
             task="tasks.validation.step:validation"),
        Step("flattening", "transform to CSV", "csv", requires_crtdl=True, writes=("viewdefinitions", "flattening"),
             task="tasks.flattening.step:flattening"),
        Step("send", "upload to the destination", writes=("send",), task="tasks.send.step:send"),
    )
}  # fmt: skip
"""Every step of document 1, in the order of its table."""
