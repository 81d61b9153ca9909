"""The inputs a job is started with (configuration, CRTDL, data), recognised by their content."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from config import ConfigError, LoadedConfig, PipelineConfig
from config.enrichments import enrichment_rules
from flows.jobs_dir import load
from flows.shell import command
from tasks.shared.errors import InputError
from tasks.shared.fhir import crtdl_preprocessing
from tasks.shared.fhir.crtdl import KEYS, parse_document
from tasks.shared.files.named_file import LARGEST_FILE
from tasks.shared.http.url_names import is_url
from tasks.shared.step import GivenInputs
from tasks.shared.units import human_bytes

_SECRET = re.compile(
    r"((x-)?(amz|goog)-)?(sig|signature|credential|security-token)|((access|id|refresh)[-_])?token|jwt|api[-_]?key"
    r"|password|passwd|pwd|(client[-_])?secret|auth|authorization",
    re.IGNORECASE,
)
"""Names of query parameters that carry secrets."""


class JobInputs(BaseModel):
    """The parameters of the flow run: paths and plain values, never a secret.

    ``input`` is an absolute directory or a URL. ``overrides`` are ``KEY=VALUE`` as given with ``--set``; literal
    secrets are refused there, so they may be kept for ``pipeline continue``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: str
    crtdl: str | None = None
    input: str | None = None
    anonymization_config: str | None = None
    patients: str | None = None
    overrides: tuple[str, ...] = ()

    @field_validator("crtdl", "input", "anonymization_config", "patients")
    @classmethod
    def _empty_is_not_given(cls, value: str | None) -> str | None:
        """Return ``None`` for an empty text: an empty field in the form of a deployment."""
        return value or None

    @field_validator("overrides")
    @classmethod
    def _without_empty_ones(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(filter(None, value))

    def load(self) -> LoadedConfig:
        """Read the configuration as it is now, with this job's overrides.

        Raises:
            config.ConfigError: with all findings.
        """
        overrides = list(self.overrides)
        if self.anonymization_config is not None:
            overrides.append(f"services.pseudonymizer.anonymization_config={json.dumps(self.anonymization_config)}")
        return load(self.config, overrides)

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> JobInputs:
        """Return the inputs in the parameters of a flow run. Raises ``InputError`` if they are not this flow's."""
        try:
            return cls(**{name: value for name, value in parameters.items() if value is not None})
        except ValidationError:
            raise InputError(
                "run-parameters", "the run was not started with the parameters of the pipeline",
                hint="look at the run in the Prefect UI, and start a new job",
            ) from None  # fmt: skip

    def step_inputs(self) -> GivenInputs:
        """Return the inputs as steps take them."""
        crtdl, patients, rules = (
            Path(path) if path is not None else None for path in (self.crtdl, self.patients, self.anonymization_config)
        )
        return GivenInputs(crtdl, patients, self.input, rules)

    def effective_crtdl(self, config: PipelineConfig, job_dir: Path) -> tuple[Path | None, tuple[str, ...]]:
        """Return the job's copy of the CRTDL, which every step reads, and warnings. It is written once.

        Raises ``InputError`` when it or the enrichment rules cannot be used, and ``StorageError``.
        """
        if self.crtdl is None:
            return None, ()
        if kept := crtdl_preprocessing.effective_file(job_dir):
            return kept, ()
        source = Path(self.crtdl)
        if not config.pipeline.requires_crtdl:  # nor is it checked then
            return crtdl_preprocessing.write_copy(source, job_dir), ()
        try:
            rules = enrichment_rules(config.services.crtdl_preprocessing)
        except ConfigError as error:
            raise config_error(error) from None
        return crtdl_preprocessing.write_effective(source, job_dir, rules)

    def parameters(self) -> dict[str, Any]:
        """Return the inputs as parameters of a flow run."""
        return self.model_dump(mode="json")


def job_command(inputs: JobInputs, config: PipelineConfig, job_dir: Path, verb: str, *rest: str) -> str:
    """Return a command like ``pipeline continue`` about a job, for a log or a page; it works from any directory.

    Overrides are in the record, but the job must be found: a ``jobs_dir`` that is relative or overridden is named.
    """
    named = any(one.startswith("jobs_dir=") for one in inputs.overrides) or not config.jobs_dir.is_absolute()
    where = ["--set", f"jobs_dir={job_dir.parent}"] if named else []
    return command(*verb.split(), inputs.config, job_dir.name, *rest, *where, anywhere=True)


def config_command(inputs: JobInputs, verb: str, *rest: str) -> str:
    """Return a command about the configuration of a job, with its overrides, for a log or a page."""
    overrides = [part for one in inputs.overrides for part in ("--set", one)]
    return command(*verb.split(), inputs.config, *rest, *overrides, anywhere=True)


def job_name(loaded: LoadedConfig, job_id: str, planned: str | None = None) -> str:
    """Return the name of a run: project or configuration, and date (``4-product.md`` §5); the id distinguishes runs
    of one minute. ``planned`` is the time (ISO 8601) of a run that had to wait for another, perhaps for a day.
    """
    when = datetime.now(UTC) if planned is None else datetime.fromisoformat(planned)
    project = loaded.config.services.send.transfer.project_identifier or loaded.path.stem
    return f"{project} {when.astimezone():%Y-%m-%d %H:%M} {job_id[:8]}"


def config_error(error: ConfigError) -> InputError:
    """Return the findings of a configuration as one error, for the record of a run without a terminal."""
    first, *others = [finding for finding in error.findings if finding.level == "error"]
    if not others:
        return InputError(first.reference, first.message, context=first.key, hint=first.hint)
    lines = [f"{one.key}: {one.message}" + (f" ({one.hint})" if one.hint else "") for one in (first, *others)]
    message = "\n".join([f"the configuration has {len(lines)} errors", *(f"- {line}" for line in lines)])
    return InputError("config-invalid", message, hint="sluice config check shows them with their lines")


def gather(
    config: str,
    positional: Sequence[str] = (),
    *,
    directory: str | None = None,
    anonymization_config: str | None = None,
    patients: str | None = None,
    overrides: Sequence[str] = (),
    wrong: list[InputError] | None = None,
) -> JobInputs:
    """Make ``JobInputs`` from a command line; relative paths are relative to the working directory.

    Errors are added to ``wrong``, if it is given, and the arguments are left out.

    Raises:
        InputError: an argument is neither a CRTDL nor a directory nor a URL, or one kind is given twice.
    """
    crtdl: str | None = None
    source: str | None = None
    found: list[InputError] = []
    if directory is not None and is_url(directory):
        found.append(InputError("dir-is-url", "--dir takes a directory, not a URL", hint="give the URL as INPUT"))
    elif directory:
        source = str(Path(directory).absolute())
    if "" in (directory, *positional):
        # From an unset shell variable. As a path it would be the working directory, whatever its content.
        found.append(InputError(
            "argument-empty", "an empty text is given where a path or a URL is expected",
            context="--dir" if directory == "" else "INPUT", hint="check whether a variable of the shell is unset",
        ))  # fmt: skip
    for argument in filter(None, positional):
        try:
            kind, value = classify(argument)
        except InputError as error:
            found.append(error)
            continue
        if kind == "crtdl" and crtdl is not None:
            found.append(InputError("two-crtdls", "two CRTDL files are given", hint="give one"))
        elif kind == "crtdl":
            crtdl = value
        elif source is not None and source != value:
            found.append(InputError("two-inputs", "two inputs are given", hint="give one directory or URL, or --dir"))
        else:
            source = value
    if found and wrong is None:
        raise found[0]
    if wrong is not None:
        wrong.extend(found)
    return JobInputs(
        config=str(Path(config).absolute()),
        crtdl=crtdl,
        input=source,
        anonymization_config=_absolute(anonymization_config),
        patients=_absolute(patients),
        overrides=tuple(overrides),
    )


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def classify(argument: str) -> tuple[str, str]:
    """Return ``("crtdl", path)`` or ``("input", directory or URL)``.

    Raises:
        InputError: names the expected and the found kind.
    """
    if is_url(argument):
        try:
            parts = urlsplit(argument)
        except ValueError:
            raise InputError(
                "url-invalid",
                "INPUT begins like a URL but is not valid",
                hint="write it like https://host.example/path",
            ) from None
        if parts.username is not None or parts.password is not None:
            raise InputError(
                "url-credentials", "a URL with user name or password is not accepted as INPUT",
                hint="put the URL into services.http_import.urls and its secret part into ${VAR}",
            )  # fmt: skip
        secret = [name for name in parse_qs(parts.query + "&" + parts.fragment) if _SECRET.fullmatch(name)]
        if secret:
            raise InputError(
                "url-secret", f"INPUT is a URL with a secret in its query ({', '.join(secret)}); it would be recorded",
                hint="put the URL into services.http_import.urls, with the secret as ${VAR}",
            )  # fmt: skip
        if not parts.hostname:
            raise InputError(
                "url-without-host", "INPUT is a URL without a host name",
                hint="write it like https://host.example/path/Patient.ndjson",
            )  # fmt: skip
        return "input", argument
    path = Path(argument)
    # os.path, not Path: a directory above that may not be entered is an answer here, no exception.
    if os.path.isdir(path):  # noqa: PTH112
        return "input", str(path.absolute())
    if not os.path.exists(path):  # noqa: PTH110
        raise InputError(
            "argument-not-found", "neither a file, a directory nor a URL that can be reached", context=argument,
            hint="give a CRTDL file (JSON), a directory of NDJSON files, or an http(s) URL",
        )  # fmt: skip
    found = _why_no_crtdl(path)
    if found is None:
        return "crtdl", str(path.absolute())
    raise InputError(
        "not-a-crtdl", f"expected a CRTDL (a JSON object with {' and '.join(KEYS)}), found {found}",
        context=argument, hint="put data files into a directory, and give the directory",
    )  # fmt: skip


def _why_no_crtdl(path: Path) -> str | None:
    try:
        found = path.stat()
        # Before it is opened: the other end of a FIFO may never come, and a device has no end.
        if not stat.S_ISREG(found.st_mode):
            return "something that is neither a regular file nor a directory"
        if found.st_size > LARGEST_FILE:
            return f"a file of {human_bytes(found.st_size)}"
        content = path.read_bytes()
        try:
            document = parse_document(content, path)
        except InputError:
            document = json.loads(content)  # still a CRTDL; its errors are found before the job
    except OSError as error:
        return f"a file that cannot be read ({error.strerror})"
    except (ValueError, RecursionError):
        return "a file that is not JSON"
    if not isinstance(document, dict):
        return f"a JSON {type(document).__name__}"
    if document.get("resourceType") == "Parameters":
        return "a FHIR Parameters resource; give the CRTDL itself, not its wrapping"
    missing = [key for key in KEYS if key not in document]
    return f"a JSON object without {' and '.join(missing)}" if missing else None
