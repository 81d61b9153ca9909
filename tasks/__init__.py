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
    """

    name: str
    summary: str
    output: str | None = None
    is_import: bool = False
    requires_crtdl: bool = False
    writes: tuple[str, ...] = ()

    def load(self) -> Any:
        """Its Prefect task, ``tasks.<name>.step.<name>``. Imports Prefect."""
        return getattr(importlib.import_module(f"tasks.{self.name}.step"), self.name)


CATALOGUE: dict[str, Step] = {
    step.name: step
    for step in (
        Step("extractor", "import through the extraction server", "import", is_import=True, requires_crtdl=True,
             writes=("extraction",)),
        Step("local_import", "import from a local directory", "import", is_import=True),
        Step("http_import", "import from an HTTP URL", "import", is_import=True),
        Step("pseudonymizer", "pseudonymize through the pseudonymization service", "pseudonymized",
             writes=("pseudonymizer",)),
        Step("wait", "pause for manual inspection"),
        Step("validation", "validate FHIR data against profiles", writes=("validation",)),
        Step("flattening", "transform to CSV", "csv", requires_crtdl=True, writes=("viewdefinitions", "flattening")),
        Step("send", "upload to the destination", writes=("send",)),
    )
}  # fmt: skip
"""Every step of document 1, in the order of its table."""
