"""The files that the configuration and the command line name for single steps: there, readable, and read by a step."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from config import PipelineConfig
from flows.job.inputs import JobInputs
from tasks.flattening.lookup import lookup_findings, lookup_warnings
from tasks.flattening.parquet import format_findings
from tasks.pseudonymizer.rules import read_rules
from tasks.shared.errors import InputError, SluiceError


def findings(config: PipelineConfig, inputs: JobInputs, steps: Sequence[str]) -> Iterator[SluiceError]:
    """What is wrong with the named files; ``steps`` are those that are still to do.

    Rules for anonymization that no step reads are a finding, not a warning: whoever gives them must not find out later
    that the data went out as it was.
    """
    rules = config.services.pseudonymizer.anonymization_config
    lookup = config.services.flattening.lookup_path
    if inputs.anonymization_config is not None and "pseudonymizer" not in config.pipeline.enabled_steps:
        yield InputError(
            "anonymization-config-unused",
            "--anonymization-config is for the step pseudonymizer, which is not enabled, and no other step reads it",
            context="pipeline.enabled_steps", hint="enable pseudonymizer, or leave out --anonymization-config",
        )  # fmt: skip
    if "pseudonymizer" in steps and rules is not None:
        given = "--anonymization-config" if inputs.anonymization_config is not None else None
        unreadable = list(_file(given or "services.pseudonymizer.anonymization_config", rules))
        yield from unreadable or _rules(rules)
    if "flattening" in steps and lookup is not None:
        unreadable = list(_file("services.flattening.lookup_path", lookup))
        yield from unreadable or lookup_findings(lookup)
    if "flattening" in steps:
        yield from format_findings(config.services.flattening)


def warnings(config: PipelineConfig, directory: Path | None = None) -> Iterator[str]:
    """What is doubtful about the named files, found at start (document 3 §4 and §5); errors are among the findings.

    ``directory`` is the one of a ``local_import`` that is still to be done.
    """
    if directory is not None and "local_import" in config.pipeline.enabled_steps:
        from tasks.local_import import importer as local_import

        yield from local_import.warnings(config, directory)
    rules = config.services.pseudonymizer.anonymization_config
    lookup = config.services.flattening.lookup_path
    if "pseudonymizer" in config.pipeline.enabled_steps and rules is not None and not list(_file("", rules)):
        with suppress(SluiceError):  # a finding
            yield from read_rules(rules).warnings
    if "flattening" in config.pipeline.enabled_steps and lookup is not None and not list(_file("", lookup)):
        yield from lookup_warnings(lookup)


def _rules(path: Path) -> Iterator[SluiceError]:
    try:
        read_rules(path)
    except SluiceError as error:
        yield error


def is_special(path: Path) -> bool:
    """Whether something is there that is no regular file: reading a pipe might never end."""
    # os.path, not Path: a directory above that may not be entered is an answer here, no exception.
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113


def not_a_file(named_by: str, path: Path) -> InputError:
    """A directory, a pipe: a pipe would keep the preflight waiting, and ``continue`` would find it empty."""
    return InputError(
        "file-unreadable", "not a regular file", context=f"{named_by}: {path}", hint="name the file itself"
    )


def _file(named_by: str, path: Path) -> Iterator[SluiceError]:
    """Whether a file can be read and holds anything."""
    context = f"{named_by}: {path}"
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            yield not_a_file(named_by, path)
            return
        with path.open("rb") as file:
            if not file.read(1):
                yield InputError("file-empty", "the file is empty", context=context)
    except (FileNotFoundError, NotADirectoryError):
        yield InputError(
            "file-not-found", "there is no such file", context=context,
            hint="check the path; a relative one starts at the working directory",
        )  # fmt: skip
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        yield InputError("file-unreadable", f"the file cannot be read: {reason}", context=context)
