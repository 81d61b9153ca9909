"""Run the sandbox services in one process, until a signal or as a child of another program.

``SERVICES`` lists the services. Each listens on its own port of 127.0.0.1. Once all of them answer, the path of a
complete configuration file is printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from deployments.sandbox.child import SandboxChild, start_child
from deployments.sandbox.common.child import watch, write_whole
from deployments.sandbox.common.gate import DEFAULT_HEADER, RequiredCredentials
from deployments.sandbox.common.serve import ERROR_PREFIX, HOST, SandboxServer, SandboxStartError, bind, make_server
from deployments.sandbox.common.service import SandboxService
from deployments.sandbox.configuration import configuration
from deployments.sandbox.extraction.app import extraction_service
from deployments.sandbox.fhir.app import fhir_service
from deployments.sandbox.flattening.app import flattening_service
from deployments.sandbox.options import (
    API_KEY,
    API_KEY_HEADER,
    PASSWORD,
    TOKEN,
    USERNAME,
    OptionError,
    SandboxOptions,
    ServiceSettings,
    read_settings,
)
from deployments.sandbox.pseudonymization.app import pseudonymization_service
from deployments.sandbox.validation.app import validation_service

__all__ = ["SERVICES", "SandboxChild", "SandboxOptions", "run_sandbox", "start_child"]

_TICK = 0.01
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True)
class ServiceContext:
    """Options, credentials and state directory for a service."""

    settings: ServiceSettings
    state: Path
    """The sandbox's state directory; each service uses its own subdirectory."""
    data: Path
    gate: RequiredCredentials


SERVICES: tuple[Callable[[ServiceContext], SandboxService], ...] = (
    lambda around: fhir_service(replace(around.settings.fhir, state=around.state / "fhir"), around.gate),
    lambda around: extraction_service(
        replace(around.settings.extraction, data=around.data, state=around.state / "extraction"), around.gate
    ),
    lambda around: pseudonymization_service(around.settings.pseudonymizer, around.gate),
    lambda around: validation_service(around.settings.validation),  # open: document 1 gives this client no auth block
    lambda around: flattening_service(around.settings.flattening),  # open for the same reason
)
"""The services, in the order of their ports. To add one, add an entry; its name is its key in ``urls``."""


def run_sandbox(options: SandboxOptions) -> int:
    """Run the services until SIGINT, SIGTERM or the end of the parent; return the exit code.

    0: stopped on request. 1: a service did not start, or ended. 2: an option is invalid. Reasons are written to stderr.
    """
    try:
        settings = read_settings(options.settings)
        data = _data(options)
        with _state(options) as state:
            around = ServiceContext(settings, state, data, _gate())
            return asyncio.run(_run(options, around))
    except OptionError as error:
        sys.stderr.write(f"{ERROR_PREFIX}{error}\n")
        return 2
    except SandboxStartError as error:
        sys.stderr.write(f"{ERROR_PREFIX}{error}\n")
        return 1


async def _run(options: SandboxOptions, around: ServiceContext) -> int:
    stop = asyncio.Event()
    with contextlib.ExitStack() as opened, _signals(stop.set):
        services = [build(around) for build in SERVICES]
        servers: list[SandboxServer] = []
        urls: dict[str, str] = {}
        tasks: list[asyncio.Task[None]] = []
        listeners = []
        for number in range(len(services)):  # reserve all ports first, so that a used port ends the start cleanly
            listeners.append(bind(options.port + number if options.port else 0))
            opened.callback(listeners[-1].close)
        for service, listener in zip(services, listeners, strict=True):
            service.open()
            opened.callback(service.close)
            server = make_server(service, lifespan=False)
            servers.append(server)
            urls[service.name] = f"http://{HOST}:{listener.getsockname()[1]}"
            tasks.append(asyncio.create_task(server.serve(sockets=[listener])))
        parent = asyncio.create_task(watch(options.parent, stop.set)) if options.parent is not None else None
        try:
            while not all(server.started for server in servers) and not any(task.done() for task in tasks):
                await asyncio.sleep(_TICK)
            if not all(server.started for server in servers):
                raise SandboxStartError("a service ended while it was starting")
            _announce(options, around, urls)
            await _first(stop, tasks)
        finally:
            if parent is not None:
                parent.cancel()
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*tasks)
        return 0 if stop.is_set() else 1


async def _first(stop: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    """Return when a stop is requested or a server has ended."""
    asked = asyncio.create_task(stop.wait())
    await asyncio.wait([asked, *tasks], return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()


def _announce(options: SandboxOptions, around: ServiceContext, urls: dict[str, str]) -> None:
    path = around.state / "sandbox.yaml"
    write_whole(path, configuration(urls, around.data, around.state / "jobs", around.gate))
    if options.ready_file is not None:
        ready = {"configuration": str(path), "urls": urls, "pid": os.getpid()}
        write_whole(options.ready_file, json.dumps(ready) + "\n")
    # Scripts parse the first line.
    lines = [f"configuration: {path}", *(f"  {name:17}{url}" for name, url in urls.items()), "Ctrl-C ends the sandbox."]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _gate() -> RequiredCredentials:
    """Return the credentials in the environment. Raises ``OptionError`` for an incomplete pair."""
    username, password = os.environ.get(USERNAME) or None, os.environ.get(PASSWORD) or None
    if (username is None) != (password is None):
        raise OptionError(f"set both {USERNAME} and {PASSWORD}, or neither")
    key, header = os.environ.get(API_KEY) or None, os.environ.get(API_KEY_HEADER) or None
    if header is not None and key is None:
        raise OptionError(f"{API_KEY_HEADER} requires {API_KEY}")
    if header is not None and not _HEADER.fullmatch(header):
        raise OptionError(f"{API_KEY_HEADER} is not a valid HTTP header name")
    return RequiredCredentials(
        username=username,
        password=password,
        token=os.environ.get(TOKEN) or None,
        api_key=key,
        api_key_header=header or DEFAULT_HEADER,
    )


def _data(options: SandboxOptions) -> Path:
    if not options.data.is_dir():
        raise OptionError(f"the data directory {options.data} does not exist")
    return options.data.resolve()


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
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Handle signals in the main thread; in other threads the program must do so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in handled:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
