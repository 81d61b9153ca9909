"""The step ``extractor``: its declaration, and the checks before a job exists (docs/services.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from config import ConfigError
from config.enrichments import enrichment_rules
from tasks.extractor.query import own_patients, read_patients
from tasks.extractor.run import run
from tasks.extractor.server import service
from tasks.extractor.submission import DIRECTORY
from tasks.extractor.urls import is_result_url
from tasks.shared.errors import InputError, SluiceError
from tasks.shared.fhir.crtdl_preprocessing import effective_file, idle_rules
from tasks.shared.http.answer import place
from tasks.shared.http.url_names import is_url
from tasks.shared.import_directory import IMPORT
from tasks.shared.step import CheckContext, GivenInputs, Step, nothing


def needs(given: GivenInputs) -> Collection[str]:
    """Require a query, unless a result URL is given."""
    return () if is_url(given.input or "") else ("crtdl",)


def patients_unused(given: GivenInputs) -> InputError:
    """Return an error rather than a warning: without the list, data of other patients would move."""
    return InputError(
        "patients-unused", "--patients limits what the extraction server extracts, and this run submits nothing",
        context=str(given.patients), hint="leave out --patients, or enable the step extractor and give a CRTDL",
    )  # fmt: skip


def checks(context: CheckContext) -> Iterator[SluiceError]:
    """Yield the errors of the patients and the input."""
    given = context.given
    if given.patients is not None and is_url(given.input or ""):
        yield patients_unused(given)
    elif given.patients is not None:
        try:
            read_patients(own_patients(context.job_dir, given.patients))
        except InputError as error:
            yield error
    if given.input is not None and not is_url(given.input):
        yield InputError(
            "input-is-directory", "extractor takes the URL of a result, INPUT is a directory",
            hint="leave out INPUT, or enable local_import instead of extractor",
        )  # fmt: skip
    elif given.input is not None and not is_result_url(given.input):
        hint = "it looks like …/fhir/__status/<job id>, …/fhir/extraction/… or …/fhir/result/…; for NDJSON: http_import"
        what = "INPUT is not the URL of an extraction result"
        yield InputError("result-url-unknown", what, context=place(given.input), hint=hint)


def warnings(context: CheckContext) -> Iterator[str]:
    """Yield the enrichment rules that do nothing."""
    given = context.given.crtdl
    if given is None or is_url(context.given.input or ""):
        return
    own = effective_file(context.job_dir) if context.job_dir is not None else None
    try:
        rules = () if own else enrichment_rules(context.config.services.crtdl_preprocessing)
        yield from idle_rules(own or given, rules)
    except ConfigError:
        return  # which is a finding of the configuration


STEP = Step(
    name="extractor",
    run=run,
    reads=nothing,
    output=IMPORT,
    folders=(DIRECTORY,),
    takes={"crtdl": None, "input": None, "patients": patients_unused},
    needs=needs,
    services=lambda config: [service(config)],
    checks=checks,
    warnings=warnings,
)
