"""The steps of a pipeline (docs/configuration.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from config.deprecated import name_of_today
from config.types import Text, nearest, problem, read_list

IMPORTS = ("extractor", "local_import", "http_import")
STEPS = (*IMPORTS, "pseudonymizer", "wait", "flattening", "send", "validation")
"""All steps. The keys of a step are in ``services.<step>``."""

NEED_CRTDL = ("extractor", "flattening")
MAY_REPEAT = ("wait", "validation")
IN_PARTS = ("pseudonymizer", "validation")
"""Steps whose files several processes can share (``pipeline.parts``)."""


def _read_step(name: str) -> str:
    if name in STEPS:
        return name
    today, near = name_of_today(f"services.{name}"), nearest(name, STEPS)
    hint = f"write {today.rpartition('.')[2]}" if today else f"did you mean {near}?" if near else None
    raise problem("unknown-step", "is not the name of a step", hint or f"the steps are {', '.join(STEPS)}")


Steps = Annotated[
    tuple[Annotated[Text, AfterValidator(_read_step), WithJsonSchema({"enum": [*STEPS]})], ...],
    BeforeValidator(read_list),
]
