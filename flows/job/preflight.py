"""Run every check that is possible before a job exists, and return all findings. Nothing is started.

Exit code 2 if any finding is about configuration or input, 3 if all of them are about services that cannot be reached.
Each step declares its own checks, in ``tasks/<step>/step.py``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from config import STEPS, Finding, LoadedConfig, PipelineConfig
from config.enrichments import enrichment_rules
from flows.job.inputs import JobInputs
from flows.output import patience
from flows.prefect.address import configured_api
from tasks import declared
from tasks.shared.errors import InputError, SluiceError
from tasks.shared.fhir import crtdl_preprocessing
from tasks.shared.http.network import Proxies, ssl_context
from tasks.shared.import_directory import IMPORT
from tasks.shared.service import ProbeWarning, Service
from tasks.shared.step import CheckContext, GivenInputs, Reads, Step
from tasks.shared.units import human_bytes

RESERVE = 100_000_000
"""Bytes that must stay free on the disk of the jobs directory besides the data."""


def preflight(
    loaded: LoadedConfig,
    inputs: JobInputs,
    *,
    done: Iterable[int] = (),
    job_dir: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[SluiceError]:
    """Return all findings. Steps at the positions ``done`` are complete and are not checked.

    ``tell`` gets the warnings, one sentence each. ``job_dir`` is the directory of a job to be continued, else ``None``.
    Its data need no further space. If it has a copy of an input file, the copy is checked.
    """
    config = loaded.config
    complete = set(done)
    names = config.pipeline.enabled_steps
    enabled = [declared(name) for name in dict.fromkeys(names)]
    left = {name for position, name in enumerate(names, 1) if position not in complete}
    steps = [step for step in enabled if step.name in left]
    own = crtdl_preprocessing.effective_file(job_dir) if job_dir is not None else None
    tls = list(_environment(config))
    context = CheckContext(config, inputs.step_inputs(), job_dir, online=not tls)
    for warning in _warnings(context, names):
        tell(warning)
    findings = [*_crtdl(context, steps, own), *_unused(context.given, enabled), *tls]
    for step in steps:
        with patience(f"checking what {step.name} needs"):
            findings.extend(step.checks(context))
    findings.extend(_disk(context, steps))
    if context.online:
        for step in steps:
            wrong = [one for service in step.services(config) for one in _probe_service(service, config, tell)]
            with patience(f"trying what {step.name} asks for"):
                findings.extend(wrong or step.trials(context))
    return findings


def file_findings(config: PipelineConfig, given: GivenInputs) -> Iterator[Finding]:
    """Yield errors in the files that the configuration and the command line name. No server is asked.

    Findings about ``services.local_import.dir`` are warnings, since ``--dir`` or INPUT may name another directory.
    """
    context = CheckContext(config, given, online=False)
    steps = [declared(name) for name in dict.fromkeys(config.pipeline.enabled_steps)]
    yield from map(_finding, _environment(config))
    for error in _crtdl(context, steps, None) if given.crtdl is not None else ():
        yield _finding(error)
    for step in steps:
        if step.name == "local_import" and given.input is None:
            found = step.checks(context) if config.services.local_import.dir is not None else ()
            yield from (_finding(error, "warning") for error in found)
        elif step.name != "http_import" or given.input is not None:
            yield from map(_finding, step.checks(context))


def _finding(error: SluiceError, level: Literal["error", "warning"] = "error") -> Finding:
    return Finding(error.reference, error.context or "", error.message, error.hint, level)


def _probe_service(service: Service, config: PipelineConfig, tell: Callable[[str], None]) -> Iterator[SluiceError]:
    if service.probe is None:
        return
    with patience(f"checking that services.{service.key} answers and is the expected service"):
        found = list(service.probe.find_problems(service, config))
    for one in found:
        if isinstance(one, ProbeWarning):
            tell(one.text)
        else:
            yield one


def _warnings(context: CheckContext, names: Sequence[str]) -> Iterator[str]:
    """Yield warnings. Errors are findings of ``preflight``."""
    if context.given.crtdl is not None and context.job_dir is None and "extractor" not in names:
        reading = [name for name in names if "crtdl" in declared(name).needs(context.given)]
        also = f"; {' and '.join(reading)} reads only its attribute groups" if reading else ""
        yield f"no step applies the query: {names[0]} imports all resources it finds{also}"
    for name in dict.fromkeys(names):
        yield from declared(name).warnings(context)


def _crtdl(context: CheckContext, steps: Sequence[Step], own: Path | None) -> Iterator[SluiceError]:
    needing = [step.name for step in steps if "crtdl" in step.needs(context.given)]
    path = context.given.crtdl
    if not needing:
        return
    if path is None:
        yield InputError(
            "crtdl-missing", f"the step {' and '.join(needing)} needs a CRTDL",
            context="pipeline.enabled_steps", hint="give the CRTDL file on the command line",
        )  # fmt: skip
    elif own is not None:
        yield from crtdl_preprocessing.findings(own)  # the rules were applied when the copy was written
    else:
        rules = enrichment_rules(context.config.services.crtdl_preprocessing)
        yield from crtdl_preprocessing.findings(path, rules)


def _unused(given: GivenInputs, enabled: Sequence[Step]) -> Iterator[SluiceError]:
    """Yield a finding for each given input that no enabled step takes, in the words of the step that would."""
    taken = {name for step in enabled for name in step.takes}
    unused = {name for name, value in vars(given).items() if value is not None} - taken
    for step in map(declared, STEPS if unused else ()):
        for name, finding in step.takes.items():
            if name in unused and finding is not None:
                yield finding(given)


def _environment(config: PipelineConfig) -> Iterator[SluiceError]:
    """Yield errors in the TLS block, in the proxy variables, and in Prefect's settings."""
    for check in (lambda: ssl_context(config.tls), Proxies, configured_api):
        try:
            check()
        except SluiceError as error:
            yield error


def _disk(context: CheckContext, steps: Sequence[Step]) -> Iterator[SluiceError]:
    jobs_dir = context.config.jobs_dir.absolute()
    # os.path, not Path: it returns False, not an exception, if a parent directory may not be entered.
    existing = next(path for path in (jobs_dir, *jobs_dir.parents) if os.path.exists(path))  # noqa: PTH110
    writable = os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK)  # noqa: PTH112
    if not writable:
        yield InputError(
            "jobs-dir", "the jobs directory cannot be written", context=str(existing),
            hint="check jobs_dir and its permissions",
        )  # fmt: skip
        return
    needed, free = space_needed(context, steps), shutil.disk_usage(existing).free
    if free < needed:
        yield InputError(
            "disk-space", f"{human_bytes(free)} are free for the jobs directory, {human_bytes(needed)} are needed",
            context=str(jobs_dir), hint="free some space, or set jobs_dir to a larger disk",
        )  # fmt: skip


def space_needed(context: CheckContext, steps: Sequence[Step]) -> int:
    """Return the bytes that must be free for the remaining ``steps``: the output of each, and ``RESERVE``.

    Output that is already in the job's directory is not counted again. The size of an extraction is unknown and counts
    as 0.
    """
    imports = [step for step in steps if step.reads(context.config) is Reads.NOTHING]
    size = sum(step.space(context, 0) for step in imports) if imports else context.held(IMPORT)
    bytes_needed = RESERVE
    for step in steps:
        written = size if step in imports else step.space(context, size)
        bytes_needed += max(written - context.held(step.output or step.folders[0]), 0) if written else 0
    return bytes_needed
