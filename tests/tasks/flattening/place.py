"""A job whose data is flattened: its query, its lookup file, its input, and what it makes."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config import PipelineConfig
from tasks.flattening.step import STEP
from tasks.shared.report import StepReport
from tests.peers import data, job
from tests.peers.server import SeenRequest
from tests.peers.services import view_run

Json = dict[str, Any]
ATTEMPTS = 2


@dataclass(frozen=True)
class GroupSpec:
    """An attribute group; ``clause`` is that of its one attribute in the lookup file, ``None`` without a table."""

    key: str
    kind: str
    clause: Json | None
    name: str | None = None

    @property
    def title(self) -> str:
        return self.name or self.key


def columns(**paths: str) -> Json:
    return {"column": [{"name": name, "path": path} for name, path in paths.items()]}


PATIENTS = GroupSpec("g-pat", "Patient", columns(gender="gender"), "Patient")
OBSERVATIONS = GroupSpec("g-obs", "Observation", columns(value="valueQuantity.value"), "Labor")
DIAGNOSES = GroupSpec(
    "g-cond", "Condition", {"forEach": "code.coding"} | columns(system="system", code="code"), "Diagnosen"
)
GROUPS = (PATIENTS, DIAGNOSES, OBSERVATIONS)


@dataclass
class FlatteningPlace:
    """A directory with a job."""

    directory: Path
    groups: tuple[GroupSpec, ...] = GROUPS
    settings: Json = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.job = self.directory / "job"
        self.input = self.job / "import"
        query, tables = data.crtdl(), []
        query["dataExtraction"]["attributeGroups"] = [
            {
                "id": group.key, "groupReference": data.PROFILE + group.key,
                "attributes": [{"attributeRef": f"{group.kind}.x", "mustHave": False}],
            } | ({"name": group.name} if group.name is not None else {})
            for group in self.groups
        ]  # fmt: skip
        for group in self.groups:
            elements = {f"{group.kind}.x": {"viewDefinition": group.clause}}
            if group.clause is not None:
                tables.append(
                    {"url": data.PROFILE + group.key, "resourceType": group.kind, "elements": elements}
                )  # fmt: skip
        self.directory.mkdir(parents=True, exist_ok=True)
        self.query = self.directory / "crtdl.json"
        self.query.write_text(json.dumps(query))
        self.lookup = self.directory / "lookup.json"
        self.lookup.write_text(json.dumps(tables))

    def write(self, name: str, *lines: bytes | Json) -> Path:
        return data.write(self.input / name, *lines)

    def configuration(self, url: str, **settings: Any) -> PipelineConfig:
        block = {"service_url": url, "lookup_path": str(self.lookup)} | self.settings | settings
        retry = {"max_attempts": ATTEMPTS, "initial_backoff_ms": 1, "max_backoff_ms": 2}
        return PipelineConfig.model_validate({"services": {"flattening": block}, "retry": retry})

    def run(self, url: str, **settings: Any) -> StepReport:
        config = self.configuration(url, **settings)
        self.context = job.context(
            self.job, "flattening", config, position=2, source=self.input, crtdl=self.query
        )  # fmt: skip
        return STEP.run(self.context)

    def tables(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted((self.job / "csv").glob("*.csv"))}

    def rows(self, table: str) -> list[dict[str, str]]:
        text = (self.job / "csv" / f"{table}.csv").read_text(encoding="utf-8")
        return list(csv.DictReader(io.StringIO(text, newline="")))

    def ids(self, table: str) -> list[str]:
        return [row["id"] for row in self.rows(table)]

    def parts(self) -> dict[str, list[str]]:
        """Return the names of the parts by group."""
        found: dict[str, list[str]] = {}
        for path in sorted((self.job / "csv" / ".parts").rglob("*.csv")):
            found.setdefault(path.parent.name, []).append(path.name)
        return found


def sent(seen: SeenRequest) -> tuple[str, list[str]]:
    """Return the type of a request's view, and the ids of its resources."""
    view, resources = view_run(seen.body)
    return view["resource"], [json.loads(one).get("id") for one in resources]
