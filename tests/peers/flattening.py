"""Fake flattening service, and a job that uses it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.flattening.flattening import FlatteningBounds, flatten
from tasks.flattening.views import RESOURCE_TYPE, GroupView, ViewColumn
from tasks.shared.fhir.crtdl import Crtdl
from tasks.shared.fhir.crtdl_model import Attribute, AttributeGroup
from tasks.shared.report import StepReport
from tests.peers import job
from tests.peers.data import PROFILE, of_patient, provenance, resource
from tests.peers.data import identified as bundle
from tests.peers.server import Reply, ScriptedService, SeenRequest
from tests.peers.services import as_row, select_rows, view_run


@dataclass(frozen=True)
class FlatteningRequest(SeenRequest):
    """A ``$run`` as it arrived."""

    view: dict[str, Any] = field(default_factory=dict, repr=False)
    resources: list[bytes] = field(default_factory=list, repr=False)

    @property
    def type(self) -> str:
        return str(self.view["resource"])

    @property
    def ids(self) -> list[str]:
        return [json.loads(resource)["id"] for resource in self.resources]


Script = Callable[[int, FlatteningRequest], "Reply | None"]


def rows_of(view: dict[str, Any], resource: bytes) -> list[bytes]:
    """Return the rows of a resource."""
    return [as_row(row) for row in select_rows(view["select"], resource)]


class FakeFlattening(ScriptedService[FlatteningRequest]):
    """Answers rows."""

    content_type = "application/x-ndjson"

    def __init__(self, script: Script | None = None) -> None:
        self.rows: Callable[[dict[str, Any], bytes], list[bytes]] = rows_of
        self.overlaps = 0
        super().__init__(script)

    def read(self, seen: SeenRequest) -> FlatteningRequest:
        """Check the shape that document 3 §5 requires."""
        view, resources = view_run(seen.body)
        assert set(view) <= {"resourceType", "name", "status", "resource", "constant", "select", "where"}
        assert {json.loads(resource)["resourceType"] for resource in resources} == {view["resource"]}
        return FlatteningRequest(**vars(seen), view=view, resources=resources)

    def note(self, request: FlatteningRequest) -> int:
        self.overlaps += request.view["name"] in [one.view["name"] for one in self.under_way]
        return super().note(request)

    def answer(self, number: int, request: FlatteningRequest, said: Reply | None) -> Reply:
        rows = (row for resource in request.resources for row in self.rows(request.view, resource))
        return said or Reply(body=b"".join(row + b"\n" for row in rows))


serving = FakeFlattening
"""``with serving(…) as service``"""


def view(
    group: str, kind: str, columns: dict[str, str], *, name: str | None = None, each: str = "",
    below: dict[str, str] | None = None, profile: str | None = None, clause: str = "forEach",
) -> GroupView:  # fmt: skip
    """Return a view with columns (name → simple path), and more of them for every element of ``each``."""
    select: list[dict[str, Any]] = [{"column": [{"name": key, "path": path} for key, path in columns.items()]}]
    if below:
        select.append({clause: each, "column": [{"name": key, "path": path} for key, path in below.items()]})
    names = [*columns, *(below or {})]
    definition = {
        "resourceType": RESOURCE_TYPE,
        "name": "".join(char for char in group if char.isalnum()),
        "status": "active",
        "resource": kind,
        "select": select,
    }
    return GroupView(
        group, name or group, profile or PROFILE + group, kind, definition,
        tuple(ViewColumn(key, None, collection=False) for key in names),
    )  # fmt: skip


def crtdl(views: Sequence[GroupView], *others: tuple[str, str]) -> Crtdl:
    """Return a CRTDL with the groups of these views, and groups (id, type) that have none."""
    made = [AttributeGroup(v.group_id, v.group_name, v.reference, (_ref(v.resource_type),)) for v in views]
    made += [AttributeGroup(group, None, PROFILE + group, (_ref(kind),)) for group, kind in others]
    return Crtdl(tuple(made))


def _ref(kind: str) -> Attribute:
    return Attribute(f"{kind}.id", must_have=False)


PATIENTS = view("g-pat", "Patient", {"id": "id", "gender": "gender"}, name="Patient")
CONDITIONS = view(
    "g-cond", "Condition", {"id": "id", "patient": "subject.reference", "note": "note"}, name="Diagnosen",
    each="code.coding", below={"system": "system", "code": "code", "display": "display"},
)  # fmt: skip
OBSERVATIONS = view(
    "g-obs", "Observation", {"id": "id", "patient": "subject.reference", "value": "valueQuantity.value"}, name="Labor"
)
VIEWS = (PATIENTS, CONDITIONS, OBSERVATIONS)


class FlatteningJob(job.StepJob):
    """A job whose data is flattened."""

    step = "flattening"
    position = 2

    def __init__(
        self, directory: Path, views: Sequence[GroupView] = VIEWS, others: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(directory)
        self.views = views
        self.crtdl = crtdl(views, *others)
        self.output = directory / "csv"

    def run(
        self,
        url: str,
        *,
        bounds: FlatteningBounds | None = None,
        attempts: int = 3,
        real_sleep: bool = False,
        **settings: Any,
    ) -> StepReport:
        services = {"flattening": {"service_url": url, **settings}}
        context = self.prepare(job.configuration(services, attempts=attempts))
        sleep = None if real_sleep else self.slept.append
        return flatten(context, self.crtdl, self.views, bounds=bounds, sleep=sleep)

    def tables(self) -> dict[str, bytes]:
        """Everything in ``csv/``."""
        return {path.name: path.read_bytes() for path in sorted(self.output.iterdir())}


def patient_line(number: int, observations: int = 3, size: int = 0, conditions: int = 1) -> dict[str, Any]:
    """Return a patient's Bundle with its Provenances, as the extraction server writes it."""
    name = f"p{number}"
    patient = resource("Patient", name, gender="female" if number % 2 else "male")
    diagnoses = [
        of_patient("Condition", f"{name}-c{n}", name, code={"coding": [{"system": "icd", "code": f"I{n}.{number}"}]})
        for n in range(conditions)
    ]
    values = [
        of_patient("Observation", f"{name}-o{n}", name, valueQuantity={"value": n + number / 8}, note="x" * size)
        for n in range(observations)
    ]
    groups = [("g-pat", [patient]), ("g-cond", diagnoses), ("g-obs", values)]
    named = [provenance(group, *members) for group, members in groups if members]
    return bundle(f"b{number}", patient, *diagnoses, *values, *named)
