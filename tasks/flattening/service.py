"""The calls to the flattening service (docs/services.md): synthetic requests, then batches with streamed rows.

*Quirk:* the service answers every failure with 500, a bad view as much as an exhausted heap.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Sequence
from typing import Final

from config import PipelineConfig
from tasks.flattening.rows import AnswerReader, RowsError
from tasks.flattening.tables import Batch, GroupTable, request_body
from tasks.flattening.views import GroupView, view_definition
from tasks.shared.errors import InputError, ServiceError, SluiceError, StalledError
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.http.answer import Answer, issue_texts
from tasks.shared.http.client import Call, ServiceClient
from tasks.shared.http.errors import DEFAULT_TRANSIENT, RequestContext, wrong_answer
from tasks.shared.http.retry import retrying
from tasks.shared.service import PATIENCE, ProbeRequest, Service, SyntheticProbe
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop

OPERATION: Final = "$run"
HEADERS: Final = {"Content-Type": "application/fhir+json", "Accept": "application/x-ndjson"}
"""*Quirk:* ``Accept`` must be exactly one media type, everything else is a 500."""

_MEMORY: Final = "if the memory of the service was too small, lower services.flattening.batch_size_mb"

_ID: Final = "sluice-probe"
_COLUMN: Final = {"column": [{"name": "id", "path": "id"}]}
_PROBE: Final = GroupView("", "", "", "Patient", view_definition("sluice_probe", "Patient", [_COLUMN]), ("id",))
"""The view of a synthetic Patient, for the test whether this is a flattening service."""


def endpoint(config: PipelineConfig) -> str:
    """Return the URL of the operation."""
    return f"{(config.services.flattening.service_url or '').rstrip('/')}/fhir/ViewDefinition/$run?_format=ndjson"


def service(config: PipelineConfig) -> Service:
    """Return ``services.flattening``, which has no credentials."""
    wrong = functools.partial(_wrong_with, view=_PROBE)
    request = ProbeRequest(Call("POST", endpoint(config), "test request", _made_up(_PROBE), HEADERS), wrong)
    probe = SyntheticProbe("a flattening service", lambda *_: [request], key="service_url")
    settings = config.services.flattening
    return Service("flattening", settings.service_url, timeout=settings.timeout.total_seconds(), probe=probe)


def _made_up(view: GroupView) -> bytes:
    """Return the request with a view and one synthetic resource."""
    return request_body(view.definition, json.dumps({"resourceType": view.resource_type, "id": _ID}).encode())


def _wrong_with(answer: Answer, view: GroupView) -> str | None:
    """Return what is wrong with the rows of a synthetic resource, in words that continue "it …"."""
    if what := _unlike_rows(answer):
        return f"answered {answer.status} with {what}"
    reader = AnswerReader(view, [_ID])
    try:
        reader.feed(answer.body)
        reader.end()
    except RowsError as error:
        return f"answered wrong rows: {error}"
    return None


def refused_views(config: PipelineConfig, views: Sequence[GroupView]) -> Iterator[SluiceError]:
    """Yield a finding for each view that the service, which is known to work, refuses for a synthetic resource."""
    with service(config).client(config, within=PATIENCE) as client:
        for view in views:
            try:
                transient = DEFAULT_TRANSIENT - {500}
                call = Call("POST", endpoint(config), "test request", _made_up(view), HEADERS, transient=transient)
                answer = client.send(call)
                wrong = _wrong_with(answer, view)
            except SluiceError as error:
                if error.answer is None or error.transient:
                    yield error
                    return
                wrong = f"answered {error.status}{issue_texts(error.answer.body)}"
            if wrong is not None:
                yield InputError(
                    "flattening-view",
                    f"flattening: the service refuses the view of group {view.group_name}: tested with a synthetic "
                    f"{view.resource_type}, it {wrong}",
                    context=f"services.flattening.lookup_path: table {view.reference}",
                    hint="correct the paths of the columns in this table of the lookup file; no data was sent",
                )


def _unlike_rows(answer: Answer) -> str | None:
    """Return what an answer holds in place of rows, by status and media type; ``None`` if it may hold rows."""
    if answer.status != 200:  # a 202 has no rows yet
        return "no rows"
    # Rows come as x-ndjson, ndjson, fhir+ndjson, x-jsonlines, json. *Quirk:* the deployed service gives no type.
    unlike = answer.media_type and not (answer.media_type.startswith("application/") and "json" in answer.media_type)
    return "a Content-Type that is not NDJSON" if unlike else None


@dataclasses.dataclass(frozen=True)
class Flattener:
    """Sends batches; thread-safe. ``stop`` ends a wait between attempts, and an answer between two pieces."""

    context: StepContext
    client: ServiceClient
    stop: Stop
    failed: FailedAnswers

    def flatten(self, batch: Batch, table: GroupTable) -> None:
        """Send a batch, and make its rows a part of the table. Every attempt sends the same bytes.

        Errors name group and resources. Raises those of ``ServiceClient``; ``StalledError`` (``flattening-timeout``),
        which is not retried; ``ServiceError``: ``flattening-failed`` for a 500 to all attempts, ``flattening-answer``,
        ``flattening-row``, ``flattening-rows-differ``; ``StorageError``; ``Stopped``.
        """
        again = retrying(
            self.context.config.retry, service="flattening", meter=self.context.meter, sleep=self.stop.sleep,
            retryable=lambda error: error.reference != "timeout",
        )  # fmt: skip
        tries = iter(range(1 << 30))
        try:
            again(lambda: self._attempt(batch, table, repeated=next(tries) > 0))
        except (SluiceError, RowsError) as error:
            placed = self._wrong_rows(error) if isinstance(error, RowsError) else self._explained(error)
            where = f"group {table.view.group_name}, resources {batch.first + 1:,} to {batch.first + len(batch.ids):,}"
            placed.context = f"{where}, {placed.context}"
            raise placed from None

    @property
    def _about(self) -> RequestContext:
        return RequestContext("flattening", OPERATION, "POST", endpoint(self.context.config))

    def _attempt(self, batch: Batch, table: GroupTable, *, repeated: bool) -> None:
        reader = AnswerReader(table.view, batch.ids)
        call = Call("POST", self._about.url, OPERATION, batch.body, HEADERS)
        with table.begin(batch) as file, self.client.stream(call, repeated=repeated) as response:
            head = Answer(response.status_code, response.headers, b"")
            if what := _unlike_rows(head):
                start = dataclasses.replace(head, body=next(response.iter_raw(), b""))
                hint = "is services.flattening.service_url the URL of a flattening service?"
                raise wrong_answer(start, self._about, f"with {what}", reference="flattening-answer", hint=hint)
            for piece in response.iter_raw():
                self.stop.check()
                file.write(reader.feed(piece))
            file.write(reader.end())
            table.keep(file, batch, reader)

    def _wrong_rows(self, wrong: RowsError) -> SluiceError:
        hint = "the service lost rows or mixed up requests: see its log; continue the job to ask again"
        if wrong.line:
            kept = self.failed.save_answer(wrong.line)
            hint += f"; the place in the answer is in {kept} in the job directory; it may quote data"
        return self._about.error(ServiceError, wrong.reference, f"gave wrong rows: {wrong}", hint=hint, status=200)

    def _explained(self, error: SluiceError) -> SluiceError:
        """Return an error with a hint for this service; save the answer."""
        answer = error.answer
        if error.reference in ("timeout", "transfer-stalled"):
            hint = "lower services.flattening.batch_size_mb, or raise services.flattening.timeout"
            return self._about.error(StalledError, "flattening-timeout", "was not answered in time", hint=hint)
        if answer is not None and answer.status == 500:
            what = error.message.partition(f"{OPERATION} ")[2]
            hint = f"the view of the group may be wrong: see the log of the service; {_MEMORY}"
            error = self._about.error(ServiceError, "flattening-failed", what, hint=hint, status=500).made_from(answer)
        elif error.status in (413, 502, 503, 504):
            error.hint = f"{error.hint}; {_MEMORY}"
        self.failed.save_answer_of(error)
        return error
