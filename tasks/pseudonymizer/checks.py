"""What can be wrong with the pseudonymization before there is a job: its rules (document 3 §4), its service."""

from __future__ import annotations

from collections.abc import Iterator

from config import PipelineConfig
from tasks.pseudonymizer.probe import PROBE
from tasks.pseudonymizer.rules import read_rules, usable_rules
from tasks.shared.errors import InputError, SluiceError
from tasks.shared.files.named_file import file_findings
from tasks.shared.service import Service
from tasks.shared.step import CheckContext, Given


def service(config: PipelineConfig) -> Service:
    """``services.pseudonymizer``."""
    return Service("pseudonymizer", config.services.pseudonymizer.url, config.services.pseudonymizer.auth, PROBE)


def rules_unused(_given: Given) -> InputError:
    """A finding, not a warning: whoever gives rules must not find out later that the data went out as it was."""
    return InputError(
        "anonymization-config-unused",
        "--anonymization-config is for the step pseudonymizer, which is not enabled, and no other step reads it",
        context="pipeline.enabled_steps", hint="enable pseudonymizer, or leave out --anonymization-config",
    )  # fmt: skip


def checks(context: CheckContext) -> Iterator[SluiceError]:
    """The rules for anonymization."""
    path = context.config.services.pseudonymizer.anonymization_config
    if path is None:
        return
    option = "--anonymization-config" if context.given.anonymization_config is not None else None
    unreadable = list(file_findings(option or "services.pseudonymizer.anonymization_config", path))
    yield from unreadable
    if not unreadable:
        try:
            read_rules(path)
        except SluiceError as error:
            yield error


def warnings(context: CheckContext) -> Iterator[str]:
    """What is doubtful about the rules."""
    rules = usable_rules(context.config.services.pseudonymizer.anonymization_config)
    yield from rules.warnings if rules is not None else ()
