"""A command of the program in the process of the tests: a fifth of what starting one costs.

What a process has to itself is given to the command and put back behind it: environment, directory, umask, streams,
handlers of signals and of log lines, the state of modules that remember something for the life of a process, and what
Prefect knows of its settings. Production runs one command a process, so a state that leaks from one command into the
next is a matter of this page; ``pytest --processes`` runs every command as a process again and tells both apart.
"""

from __future__ import annotations

import contextvars
import io
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any
from unittest import mock

import flows.run
from flows.job import lock
from flows.prefect import address as api_address
from flows.signals import NUMBERS
from tasks.shared import blanked
from tasks.shared.http import request_log


def run(argv: Sequence[str], *, cwd: Path, environment: dict[str, str]) -> tuple[int, str, str]:
    """Run a command in this process; return exit code, stdout and stderr."""
    out, err = _stream(), _stream()
    with ExitStack() as stack:
        nothing = stack.enter_context(open(os.devnull, encoding="utf-8"))  # noqa: PTH123 - a device
        stack.enter_context(_surroundings([str(flows.run.__file__), *argv], cwd, environment))
        stack.enter_context(_memory())
        stack.enter_context(_prefect())
        stack.enter_context(_streams(nothing, out, err))
        # Prefect keeps what it runs in context variables.
        code = contextvars.copy_context().run(_main, argv)
    return code, _text(out), _text(err)


def _main(argv: Sequence[str]) -> int:
    """As ``flows.run.main``, which takes the signals of the whole process over and ends it."""
    return flows.run.run(argv)


@contextmanager
def _surroundings(words: Sequence[str], cwd: Path, environment: dict[str, str]) -> Iterator[None]:
    """Set up a process's arguments, directory, environment and signal handlers, and restore them."""
    before = dict(os.environ), Path.cwd(), os.umask(0o077), sys.argv, sys.orig_argv
    handlers = {number: signal.getsignal(number) for number in NUMBERS}
    try:
        _environ(environment)
        os.chdir(cwd)
        sys.argv, sys.orig_argv = [*words], [sys.executable, *words]
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _environ(before[0])
        os.chdir(before[1])
        os.umask(before[2])
        sys.argv, sys.orig_argv = before[3:]


def _environ(wanted: dict[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)


@contextmanager
def _memory() -> Iterator[None]:
    """Clear the state that our modules hold for the life of a process, and restore it. Tokens and TLS contexts stay:
    they are kept by the issuer's port, and by the path of a bundle."""
    log = {name: _log(logging.getLogger(name)) for name in ("", "sluice")}
    try:
        blanked.forget()
        with mock.patch.object(lock, "held_here", set()), mock.patch.object(request_log, "listener", None):
            yield
    finally:
        blanked.forget()
        for name, (handlers, level) in log.items():
            logging.getLogger(name).handlers[:] = handlers
            logging.getLogger(name).setLevel(level)


def _log(logger: logging.Logger) -> tuple[list[logging.Handler], int]:
    return list(logger.handlers), logger.level


@contextmanager
def _prefect() -> Iterator[None]:
    """Prefect reads its settings when it is imported; here it does again when a command has chosen an API."""
    choose = api_address.use

    def use(address: api_address.ApiAddress) -> None:
        choose(address)
        from prefect import context

        context.GLOBAL_SETTINGS_CONTEXT = _settings()

    with mock.patch.object(api_address, "use", use):
        before = getattr(sys.modules.get("prefect.context"), "GLOBAL_SETTINGS_CONTEXT", None)
        try:
            yield
        finally:
            if before is not None:
                sys.modules["prefect.context"].GLOBAL_SETTINGS_CONTEXT = before  # type: ignore[attr-defined]


def _settings() -> Any:
    """Return Prefect's settings for this environment. Reading them costs 50 ms, and they rarely differ.

    The home is that of the tests; the location of results is set again when the flow runs.
    """
    from prefect import context

    with mock.patch.dict(os.environ, {"PREFECT_HOME": _HOME}):
        os.environ.pop("PREFECT_RESULTS_LOCAL_STORAGE_PATH", None)
        wanted = tuple(sorted(item for item in os.environ.items() if item[0].startswith("PREFECT_")))
        if wanted not in _known:
            _known[wanted] = context.root_settings_context()
        return _known[wanted]


_HOME = os.environ["PREFECT_HOME"]
_known: dict[tuple[tuple[str, str], ...], Any] = {}


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True)


@contextmanager
def _streams(nothing: IO[str], out: IO[str], err: IO[str]) -> Iterator[None]:
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = nothing, out, err  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return io.StringIO(buffer.getvalue().decode(), newline=None).getvalue()
