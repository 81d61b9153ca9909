"""The inputs a job is started with (configuration, CRTDL, data), recognised by their content."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from config import LoadedConfig, PipelineConfig
from config.enrichments import enrichment_rules
from flows.jobs_dir import load
from tasks.shared.errors import InputError
from tasks.shared.fhir import crtdl_preprocessing
from tasks.shared.fhir.crtdl import KEYS
from tasks.shared.files.named_file import LARGEST_FILE
from tasks.shared.http.url_names import is_url
from tasks.shared.step import GivenInputs

_SECRET = re.compile(
    r"((x-)?(amz|goog)-)?(sig|signature|credential|security-token)|((access|id|refresh)[-_])?token|jwt|api[-_]?key"
    r"|password|passwd|pwd|(client[-_])?secret|auth|authorization",
    re.IGNORECASE,
)
"""Names of query parameters that carry secrets."""


class JobInputs(BaseModel):
    """The parameters of the flow run: paths and plain values, never a secret.

    ``input`` is an absolute directory or a URL. ``overrides`` are ``KEY=VALUE`` as given with ``--set``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: str
    crtdl: str | None = None
    input: str | None = None
    anonymization_config: str | None = None
    patients: str | None = None
    overrides: tuple[str, ...] = ()

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> JobInputs:
        """Return the inputs in the parameters of a flow run. Raises ``InputError`` if they are not this flow's.

        An empty field in the form of a deployment counts as not given.
        """
        try:
            return cls(**{name: value for name, value in parameters.items() if value})
        except ValidationError:
            raise InputError(
                "run-parameters", "the run was not started with the parameters of the pipeline",
                hint="look at the run in the Prefect UI, and start a new job",
            ) from None  # fmt: skip

    def load(self) -> LoadedConfig:
        """Read the configuration as it is now, with this job's overrides. Raises ``ConfigError`` with all findings."""
        overrides = [one for one in self.overrides if one]
        if self.anonymization_config is not None:
            overrides.append(f"services.pseudonymizer.anonymization_config={json.dumps(self.anonymization_config)}")
        return load(self.config, overrides)

    def step_inputs(self) -> GivenInputs:
        """Return the inputs for the context of a step."""
        paths = (self.crtdl, self.patients, self.anonymization_config)
        crtdl, patients, rules = (Path(path) if path is not None else None for path in paths)
        return GivenInputs(crtdl, patients, self.input, rules)

    def effective_crtdl(self, config: PipelineConfig, job_dir: Path) -> tuple[Path | None, tuple[str, ...]]:
        """Return the job's copy of the CRTDL, if one is given, and warnings. It is written once; all steps read it."""
        if self.crtdl is None:
            return None, ()
        if kept := crtdl_preprocessing.effective_file(job_dir):
            return kept, ()
        if not config.pipeline.requires_crtdl:  # then the CRTDL is not checked either
            return crtdl_preprocessing.write_copy(Path(self.crtdl), job_dir), ()
        rules = enrichment_rules(config.services.crtdl_preprocessing)
        return crtdl_preprocessing.write_effective(Path(self.crtdl), job_dir, rules)

    def parameters(self) -> dict[str, Any]:
        """Return the inputs as parameters of a flow run."""
        return self.model_dump(mode="json")


def job_name(loaded: LoadedConfig, planned: str | None = None) -> str:
    """Return the name of a run: project or configuration, and time: that ``planned`` by a schedule, else now."""
    when = datetime.now(UTC) if planned is None else datetime.fromisoformat(planned)
    project = loaded.config.services.send.transfer.project_identifier or loaded.path.stem
    return f"{project} {when.astimezone():%Y-%m-%d %H:%M}"


def gather(
    config: str, positional: Sequence[str] = (), *, directory: str | None = None,
    anonymization_config: str | None = None, patients: str | None = None, overrides: Sequence[str] = (),
) -> tuple[JobInputs, list[InputError]]:  # fmt: skip
    """Return the ``JobInputs`` of a command line, and the errors in its arguments."""
    found: dict[str, str] = {}
    errors: list[InputError] = []
    for argument in (*positional, *([directory] if directory is not None else [])):
        try:
            is_dir = argument and argument == directory
            kind, value = ("input", str(Path(argument).absolute())) if is_dir else classify(argument)
            if found.setdefault(kind, value) != value:
                names = "CRTDL files" if kind == "crtdl" else "inputs"
                errors.append(InputError(f"two-{kind}s", f"two {names} are given", hint="give one"))
        except InputError as error:
            errors.append(error)
    rules, ids = (str(Path(path).absolute()) if path else None for path in (anonymization_config, patients))
    inputs = JobInputs(
        config=str(Path(config).absolute()), crtdl=found.get("crtdl"), input=found.get("input"),
        anonymization_config=rules, patients=ids, overrides=tuple(overrides),
    )  # fmt: skip
    return inputs, errors


def classify(argument: str) -> tuple[str, str]:
    """Return ``("crtdl", path)`` or ``("input", directory or URL)``. Raises ``InputError`` for anything else."""
    if is_url(argument):
        try:
            parts = urlsplit(argument)
        except ValueError:
            raise InputError("url-invalid", "INPUT begins like a URL but is not valid", hint="correct it") from None
        secret = [name for name in parse_qs(parts.query + "&" + parts.fragment) if _SECRET.fullmatch(name)]
        if secret or parts.username is not None or parts.password is not None:
            raise InputError(
                "url-secret", "INPUT is a URL with a secret in it, which would be recorded",
                hint="put the URL into services.http_import.urls, with the secret as ${VAR}",
            )  # fmt: skip
        return "input", argument
    path = Path(argument)
    # os.path, not Path: it returns False, not an exception, if a parent directory may not be entered.
    if argument and os.path.isdir(path):  # noqa: PTH112
        return "input", str(path.absolute())
    if not argument or not os.path.exists(path):  # noqa: PTH110
        raise InputError(
            "argument-not-found", "neither a file, a directory nor a URL", context=argument or "an empty text",
            hint="give a CRTDL file (JSON), a directory of NDJSON files, or an http(s) URL",
        )  # fmt: skip
    if (found := _why_no_crtdl(path)) is not None:
        raise InputError(
            "not-a-crtdl", f"expected a CRTDL (a JSON object with {' and '.join(KEYS)}), found {found}",
            context=argument, hint="put data files into a directory, and give the directory",
        )  # fmt: skip
    return "crtdl", str(path.absolute())


def _why_no_crtdl(path: Path) -> str | None:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_FILE:
            return "no regular file, or one that is too large"
        document = json.loads(path.read_bytes())
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
