"""Everything that can be found wrong before a job exists: all findings of all checks, nothing started.

``4-product.md`` §2: exit code 2 when any finding is about configuration or input, 3 when all of them are about services
that cannot be reached now.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from config import CRTDL_STEPS, AuthConfig, LoadedConfig, PipelineConfig
from config.enrichments import enrichment_rules
from flows.job import named_files
from flows.job.inputs import JobInputs, is_url
from flows.job.kept import KeptInputs
from flows.job.space import needed
from tasks.shared.errors import InputError, SluiceError, StorageError
from tasks.shared.http.client import ServiceClient
from tasks.shared.http.tls import ssl_context


def preflight(
    loaded: LoadedConfig, inputs: JobInputs, *, done: Iterable[int] = (), job_dir: Path | None = None
) -> list[SluiceError]:
    """Every finding; ``done`` are the positions of steps that are complete and need nothing any more.

    ``job_dir`` is the directory of a job that goes on: what is in it needs no space again, and where the job has a copy
    of its own of a file it was started with, the copy is checked.
    """
    config = loaded.config
    complete = set(done)
    open_steps = [
        str(name) for position, name in enumerate(config.pipeline.enabled_steps, 1) if position not in complete
    ]
    kept = KeptInputs.of(inputs, job_dir)
    findings: list[SluiceError] = [
        *_crtdl(config, inputs, open_steps, kept.crtdl),
        *_patients(config, inputs, open_steps, kept.patients),
    ]
    for check in (named_files.findings, _tls):
        findings.extend(check(config, inputs, open_steps))
    offered: dict[str, int] = {}  # what servers say about URLs, which are asked about once
    findings.extend(_import(config, inputs, open_steps, job_dir, offered))
    findings.extend(_disk(config, inputs, open_steps, job_dir, offered))
    findings.extend(_services(config, inputs, open_steps))
    return findings


def worst(findings: Sequence[SluiceError]) -> SluiceError:
    """The finding that decides the exit code."""
    return max(findings, key=lambda finding: finding.exit_code == 2)


def exit_code(findings: Sequence[SluiceError]) -> int:
    """2 when any finding is about configuration or input, 3 when all are about services, 0 without findings."""
    if not findings:
        return 0
    return 3 if all(finding.transient for finding in findings) else 2


def _crtdl(config: PipelineConfig, inputs: JobInputs, steps: Sequence[str], kept: Path | None) -> Iterator[SluiceError]:
    direct = is_url(inputs.input or "")  # the URL of a result needs no query
    needing = [name for name in steps if name in CRTDL_STEPS and not (name == "extractor" and direct)]
    if not needing:
        return
    if inputs.crtdl is None:
        yield InputError(
            "crtdl-missing", f"the step {' and '.join(needing)} needs a CRTDL",
            context="pipeline.enabled_steps", hint="give the CRTDL file on the command line",
        )  # fmt: skip
        return
    from tasks.shared.fhir import crtdl_preprocessing

    if kept is not None:
        yield from crtdl_preprocessing.findings(kept)  # the rules were applied when it was written
    elif named_files.is_special(path := Path(inputs.crtdl)):
        yield named_files.not_a_file("CRTDL", path)
    else:
        yield from crtdl_preprocessing.findings(path, enrichment_rules(config.services.crtdl_preprocessing))


def _patients(
    config: PipelineConfig, inputs: JobInputs, steps: Sequence[str], path: Path | None
) -> Iterator[SluiceError]:
    if path is None:
        return
    if "extractor" not in config.pipeline.enabled_steps or is_url(inputs.input or ""):
        # Whoever names patients means only these: going on without them would move more than was asked for.
        yield InputError(
            "patients-unused", "--patients limits what the extraction server extracts, and this run submits nothing",
            context=inputs.patients, hint="leave out --patients, or enable the step extractor and give a CRTDL",
        )  # fmt: skip
    elif "extractor" in steps:
        from tasks.extractor.patients import read_patients

        if named_files.is_special(path):
            yield named_files.not_a_file("--patients", path)
            return
        try:
            read_patients(path)
        except InputError as error:
            yield error


def _tls(config: PipelineConfig, _inputs: JobInputs, _steps: Sequence[str]) -> Iterator[SluiceError]:
    try:
        ssl_context(config.tls)
    except SluiceError as error:
        yield error


def import_directory(config: PipelineConfig, inputs: JobInputs) -> Path | None:
    """The directory a ``local_import`` reads: the command line's, else the configuration's."""
    directory = inputs.input or config.services.local_import.dir
    return Path(directory).absolute() if directory else None


def _import(
    config: PipelineConfig, inputs: JobInputs, steps: Sequence[str], job_dir: Path | None, offered: dict[str, int]
) -> Iterator[SluiceError]:
    if "extractor" in steps and inputs.input is not None:
        from tasks.extractor.extraction import result_url_unknown
        from tasks.extractor.urls import is_result_url

        if not is_url(inputs.input):
            yield InputError(
                "input-is-directory", "extractor takes the URL of a result, INPUT is a directory",
                hint="leave out INPUT, or enable local_import instead of extractor",
            )  # fmt: skip
        elif not is_result_url(inputs.input):
            yield result_url_unknown(inputs.input)
    if "local_import" in steps:
        directory = import_directory(config, inputs)
        if is_url(inputs.input or ""):
            yield InputError(
                "input-is-url", "local_import takes a directory, INPUT is a URL",
                hint="give a directory, or enable http_import instead of local_import",
            )  # fmt: skip
        elif directory is None:
            yield InputError(
                "input-missing", "local_import has no directory", context="services.local_import.dir",
                hint="set it, or give --dir DIR",
            )  # fmt: skip
        else:
            from tasks.local_import import importer as local_import

            yield from local_import.findings(config, directory)
    if "http_import" in steps:
        if inputs.input is not None and not is_url(inputs.input):
            yield InputError(
                "input-is-directory", "http_import takes a URL, INPUT is a directory",
                hint="give a URL, or enable local_import instead of http_import",
            )  # fmt: skip
        elif inputs.input is None and not config.services.http_import.urls:
            yield InputError(
                "input-missing", "http_import has no URL", context="services.http_import.urls",
                hint="set it, or give the URL as INPUT",
            )  # fmt: skip
        elif not list(_tls(config, inputs, steps)):
            from tasks.http_import import importer as http_import

            yield from http_import.findings(config, inputs.input, job_dir=job_dir, sizes=offered)


def _disk(
    config: PipelineConfig, inputs: JobInputs, steps: Sequence[str], job_dir: Path | None, offered: Mapping[str, int]
) -> Iterator[SluiceError]:
    jobs_dir = config.jobs_dir.absolute()
    # os.path, not Path: a directory above that may not be entered is an answer here, no exception.
    existing = next(path for path in (jobs_dir, *jobs_dir.parents) if os.path.exists(path))  # noqa: PTH110
    if not existing.is_dir():
        yield StorageFindingError(
            "jobs-dir", "the jobs directory is not a directory", context=str(existing),
            hint="set jobs_dir to a directory, or to a path where one can be made",
        )  # fmt: skip
        return
    if not os.access(existing, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        yield StorageFindingError(
            "jobs-dir", "the jobs directory cannot be written", context=str(existing),
            hint="check jobs_dir and its permissions",
        )  # fmt: skip
        return
    space = needed(config, steps, directory=import_directory(config, inputs), offered=offered, job_dir=job_dir)
    free = shutil.disk_usage(existing).free
    if free < space:
        yield StorageFindingError(
            "disk-space", f"{free / 1e6:.0f} MB are free for the jobs directory, {space / 1e6:.0f} MB are needed",
            context=str(jobs_dir), hint="free some space, or set jobs_dir to a larger disk",
        )  # fmt: skip


class StorageFindingError(StorageError):
    """A finding about the disk before a job exists: the user's to mend, exit code 2."""

    exit_code = 2


def _services(config: PipelineConfig, _inputs: JobInputs, steps: Sequence[str]) -> Iterator[SluiceError]:
    try:
        ssl_context(config.tls)
    except SluiceError:
        return  # reported once, by the check of the TLS block
    for name, url, auth in service_addresses(config):
        if name in steps and url:
            yield from _reach(config, name, url, auth)
    if "send" in steps and config.services.send.send_as == "s3_upload":
        from tasks.send.s3 import upload  # boto3 is slow to import

        yield from upload.findings(config)


def service_addresses(config: PipelineConfig) -> list[tuple[str, str | None, AuthConfig | None]]:
    """Step, the address that shows that its service answers, and its credentials."""
    services = config.services
    fhir: Callable[[str | None], str | None] = lambda url: f"{url.rstrip('/')}/fhir/metadata" if url else None  # noqa: E731
    send = services.send
    send_url = fhir(send.url) if send.send_as in {"direct_resource_load", "transfer_load"} else None
    return [
        ("extractor", fhir(services.extractor.base_url), services.extractor.auth),
        ("pseudonymizer", fhir(services.pseudonymizer.url), services.pseudonymizer.auth),
        ("validation", services.validation.url, None),
        ("flattening", fhir(services.flattening.service_url), None),
        ("send", send_url, send.auth),
    ]


def _reach(config: PipelineConfig, name: str, url: str, auth: AuthConfig | None) -> Iterator[SluiceError]:
    try:
        # The service is asked once, the issuer as the retry block says: a token is a call like those of the step.
        with ServiceClient(
            f"services.{name}", tls=config.tls, retry=config.retry, auth=auth, credentials_origin=url, timeout=15.0
        ) as client:
            client.authorize()
            client.probe(url)
    except SluiceError as error:
        yield error
