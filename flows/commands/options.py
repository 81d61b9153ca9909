"""Arguments and options of several commands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import click

from flows.commands import complete

config_argument = click.argument("config", type=complete.FILE)
job_argument = click.argument("job", shell_complete=complete.jobs)
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a configuration key; repeatable."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
progress_option = click.option("--no-progress", is_flag=True, help="No progress, only results.")


class Age(click.ParamType[timedelta]):
    """A duration, written as in the configuration."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Return the duration, or fail with a usage error."""
        from config.duration import DurationError, parse_duration

        try:
            return parse_duration(str(value))
        except DurationError as error:
            return self.fail(f"{value!r}: {error}", param, ctx)


def server_job(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Return the id of an extraction job, or ``new``. It must be whole, because a wrong choice cannot be undone."""
    try:
        return value if value in (None, "new") else str(UUID(value))
    except ValueError:
        raise click.BadParameter("neither the id of a job, as extraction list shows it, nor new") from None


def job_inputs(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """Add the arguments of a new job to a command. Pass them as a ``JobInputs`` and the errors in them."""

    @functools.wraps(function)
    def command(config: str, inputs: tuple[str, ...], **given: Any) -> int | None:
        from flows.job.inputs import gather

        names = ("directory", "anonymization_config", "patients", "overrides")
        job, wrong = gather(config, inputs, **{name: given.pop(name) for name in names})
        return function(job, wrong, **given)

    file = functools.partial(click.option, metavar="FILE", type=complete.FILE)
    for decorate in (
        set_option,
        file("--patients", help="File with one patient id a line, instead of the CRTDL's cohort."),
        file("--anonymization-config", help="Anonymization YAML file; overrides the configuration."),
        click.option(
            "--dir",
            "directory",
            metavar="DIR",
            type=complete.DIRECTORY,
            help="Directory to import; overrides services.local_import.dir.",
        ),
        click.argument("inputs", nargs=-1, metavar="[CRTDL] [INPUT]", type=complete.FILE),
        config_argument,
    ):
        command = decorate(command)
    return command
