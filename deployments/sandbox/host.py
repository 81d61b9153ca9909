"""All sandbox services on one port of 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from starlette.applications import Starlette
from starlette.routing import Mount

from deployments.sandbox.child import ERROR, FIRST_LINE, SandboxStartError
from deployments.sandbox.data import ANONYMIZATION_RULES, DATA, DEMO_CRTDL, DEMO_LOOKUP, STEPS
from deployments.sandbox.extraction.app import extraction_service
from deployments.sandbox.extraction.engine import ExtractionOptions
from deployments.sandbox.fhir.app import fhir_service
from deployments.sandbox.fhir.transaction import Manners
from deployments.sandbox.flattening import flattening_service
from deployments.sandbox.pseudonymization.app import pseudonymization_service
from deployments.sandbox.serve import HOST, bind, make_server
from deployments.sandbox.service import SandboxService
from deployments.sandbox.validation import validation_service


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of ``--set``: ``manners`` of the FHIR server, the others of the extraction server."""

    manners: Manners = "hapi"
    batchsize: Annotated[int, msgspec.Meta(ge=1)] = 500
    maxconcurrency: Annotated[int, msgspec.Meta(ge=1)] = 4
    batch_delay: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    availability_delay: Annotated[int, msgspec.Meta(ge=0)] = 0
    result_urls: Literal["absolute", "path", "host"] = "absolute"


@dataclass(frozen=True)
class SandboxOptions:
    """Options of the sandbox from the command line; ``with_parent``: end when standard input ends."""

    data: str | None
    state: str | None
    port: int
    settings: tuple[str, ...]
    with_parent: bool = False


def services(given: tuple[str, ...], data: Path, state: Path) -> list[SandboxService]:
    """Return the services; each is served below its name. Raises ``SandboxStartError`` for a wrong setting."""
    try:
        settings = msgspec.convert(dict(one.partition("=")[::2] for one in given), Settings, strict=False)
    except ValueError as error:
        known = ", ".join(Settings.__struct_fields__)
        raise SandboxStartError(f"--set: {error}; the settings are {known}") from None
    named = msgspec.structs.asdict(settings)
    fhir = fhir_service(state=state / "fhir", manners=named.pop("manners"))
    extraction = ExtractionOptions(data, state / "extraction", **named)
    return [
        fhir, extraction_service(extraction), pseudonymization_service(),
        validation_service(), flattening_service(),
    ]  # fmt: skip


def run_sandbox(options: SandboxOptions) -> int:
    """Run the services until a signal or the end of the parent; return the exit code.

    0: stopped on request. 2: not started; the reason is written to stderr.
    """
    try:
        asyncio.run(_run(options))
    except SandboxStartError as error:
        sys.stderr.write(f"{ERROR}{error}\n")
        return 2
    return 0


async def _run(options: SandboxOptions) -> None:
    with contextlib.ExitStack() as opened:
        data = Path(options.data).resolve() if options.data else DATA
        if not data.is_dir():
            raise SandboxStartError(f"the data directory {options.data} does not exist")
        state = opened.enter_context(_state(options.state))
        listener = opened.enter_context(contextlib.closing(bind(options.port)))
        parts = services(options.settings, data, state)
        for part in parts:
            opened.enter_context(part.opened())
        server = make_server(Starlette(routes=[Mount(f"/{part.name}", part) for part in parts]))
        serving = asyncio.create_task(server.serve(sockets=[listener]))

        def stop() -> None:
            server.should_exit = True

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop)
        if options.with_parent:
            loop.add_reader(sys.stdin.fileno(), stop)
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        root = f"http://{HOST}:{listener.getsockname()[1]}"
        _announce(data, state, {part.name: f"{root}/{part.name}" for part in parts})
        await serving


def _configuration(urls: Mapping[str, str], data: Path, jobs: Path) -> str:
    """Return the text of the configuration file, complete for ``pipeline start``."""
    template = (DATA / "sandbox.yaml.template").read_text(encoding="utf-8")
    paths = {"data": data, "jobs": jobs, "rules": ANONYMIZATION_RULES, "lookup": DEMO_LOOKUP}
    values = {name: _text(str(value)) for name, value in (*urls.items(), *paths.items())}
    return template.format_map(values | {"crtdl": DEMO_CRTDL, "steps": ", ".join(STEPS)})


def _text(value: str) -> str:
    """Return a YAML string that is not expanded: JSON is YAML, and ``$${`` stands for ``${``."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${")


def _announce(data: Path, state: Path, urls: Mapping[str, str]) -> None:
    path = state / "sandbox.yaml"
    path.write_text(_configuration(urls, data, state / "jobs"), encoding="utf-8")
    # Programs read the first line.
    lines = [f"{FIRST_LINE}{path}", *(f"  {name:17}{url}" for name, url in urls.items()), "Ctrl-C ends the sandbox."]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _state(given: str | None) -> Iterator[Path]:
    """Yield the state directory: a temporary one if none is given."""
    if given is None:
        with tempfile.TemporaryDirectory(prefix="sluice-sandbox-") as directory:
            yield Path(directory)
        return
    state = Path(given).resolve()
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SandboxStartError(f"the state directory {state} cannot be created: {error.strerror}") from None
    yield state
