"""All sandbox services on one port of 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.routing import Mount

from deployments.sandbox.child import ERROR, FIRST_LINE, SandboxStartError
from deployments.sandbox.configuration import configuration
from deployments.sandbox.credentials import Credentials, credentials_of_environment
from deployments.sandbox.data import DATA
from deployments.sandbox.extraction.app import ExtractionOptions, extraction_service
from deployments.sandbox.fhir.app import fhir_service
from deployments.sandbox.flattening import flattening_service
from deployments.sandbox.pseudonymization.app import pseudonymization_service
from deployments.sandbox.serve import HOST, bind, make_server
from deployments.sandbox.service import SandboxService
from deployments.sandbox.validation import validation_service


class OptionError(Exception):
    """An option cannot be used. The message says why."""


class Settings(BaseModel):
    """What ``--set`` can change."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    manners: Literal["hapi", "blaze"] = "hapi"
    references: bool = True
    max_body: int | None = Field(None, ge=1)
    batchsize: int = Field(500, ge=1)
    maxconcurrency: int = Field(4, ge=1)
    batch_delay: float = Field(0.0, ge=0, le=3600)
    availability_delay: int = Field(0, ge=0)
    result_urls: Literal["absolute", "path", "host"] = "absolute"
    ignore_config: bool = False


@dataclass(frozen=True)
class SandboxOptions:
    """Options of the sandbox."""

    data: Path = DATA
    """Directory of FHIR NDJSON: the extraction server's data, and the input of the configuration."""
    port: int = 0
    """0: a free port."""
    state: Path | None = None
    """State directory that is kept; None: a temporary directory, deleted at the end."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Names and values of ``--set``."""
    with_parent: bool = False
    """End when standard input ends, as it does with the program that started the sandbox."""


def read_options(
    data: str | None, state: str | None, port: int, settings: tuple[str, ...], *, with_parent: bool = False
) -> SandboxOptions:
    """Return the options of a command line."""
    named = dict(setting.partition("=")[::2] for setting in settings)
    return SandboxOptions(Path(data) if data else DATA, port, Path(state) if state else None, named, with_parent)


def services(options: SandboxOptions, state: Path, credentials: Credentials) -> list[SandboxService]:
    """Return the services; each is served below its name. Raises ``OptionError``."""
    try:
        settings = Settings.model_validate(dict(options.settings))
    except ValidationError as error:
        raise OptionError(_explained(error)) from None
    extraction = ExtractionOptions(
        options.data.resolve(), state / "extraction", settings.batchsize, settings.maxconcurrency, settings.batch_delay,
        availability_delay=settings.availability_delay, result_urls=settings.result_urls,
    )  # fmt: skip
    return [
        fhir_service(
            credentials, state=state / "fhir", manners=settings.manners, references=settings.references,
            max_body=settings.max_body,
        ),
        extraction_service(extraction, credentials),
        pseudonymization_service(credentials, ignores_config=settings.ignore_config),
        validation_service(),
        flattening_service(),
    ]  # fmt: skip


def _explained(error: ValidationError) -> str:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown setting {name!r}; known are {', '.join(Settings.model_fields)}"
    return f"setting {name}: {first['msg']}"


def run_sandbox(options: SandboxOptions) -> int:
    """Run the services until SIGINT, SIGTERM or the end of the parent; return the exit code.

    0: stopped on request. 1: a service did not start. 2: an option is invalid. Reasons are written to stderr.
    """
    try:
        return asyncio.run(_run(options))
    except (OptionError, SandboxStartError) as error:
        sys.stderr.write(f"{ERROR}{error}\n")
        return 2 if isinstance(error, OptionError) else 1


async def _run(options: SandboxOptions) -> int:
    with contextlib.ExitStack() as opened:
        try:
            credentials = credentials_of_environment()
        except ValueError as error:
            raise OptionError(str(error)) from None
        if not options.data.is_dir():
            raise OptionError(f"the data directory {options.data} does not exist")
        state = opened.enter_context(_state(options))
        listener = opened.enter_context(contextlib.closing(bind(options.port)))
        parts = services(options, state, credentials)
        for part in parts:
            opened.enter_context(part.opened())
        server = make_server(Starlette(routes=[Mount(f"/{part.name}", part) for part in parts]))
        serving = asyncio.create_task(server.serve(sockets=[listener]))

        def stop() -> None:
            server.should_exit = True

        opened.enter_context(_stopping(stop, with_parent=options.with_parent))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        root = f"http://{HOST}:{listener.getsockname()[1]}"
        _announce(options, state, {part.name: f"{root}/{part.name}" for part in parts}, credentials)
        await serving
    return 0


def _announce(options: SandboxOptions, state: Path, urls: Mapping[str, str], credentials: Credentials) -> None:
    path = state / "sandbox.yaml"
    try:
        path.write_text(configuration(urls, options.data.resolve(), state / "jobs", credentials), encoding="utf-8")
    except OSError as error:
        raise SandboxStartError(f"{path} cannot be written: {error.strerror}") from None
    # Programs read the first line.
    lines = [f"{FIRST_LINE}{path}", *(f"  {name:17}{url}" for name, url in urls.items()), "Ctrl-C ends the sandbox."]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _state(options: SandboxOptions) -> Iterator[Path]:
    if options.state is None:
        with tempfile.TemporaryDirectory(prefix="sluice-sandbox-") as directory:
            yield Path(directory)
        return
    try:
        options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise OptionError(f"the state directory {options.state} cannot be created: {error.strerror}") from None
    yield options.state.resolve()


@contextlib.contextmanager
def _stopping(stop: Callable[[], None], *, with_parent: bool) -> Iterator[None]:
    """Call ``stop`` on a signal, and at the end of standard input if that is the parent's."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    if with_parent:
        loop.add_reader(sys.stdin.fileno(), stop)
    try:
        yield
    finally:
        if with_parent:
            loop.remove_reader(sys.stdin.fileno())
