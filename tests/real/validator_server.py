"""HL7's validator in server mode, started once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real.programs import HOST, directory, program, running, scratch


@contextmanager
def validator_running() -> Iterator[str]:
    """Yield the validator with the definitions of R4, and its URL; it needs half a minute to start."""
    java = program("java", "SLUICE_REAL_JAVA", "install a JDK, 17 or newer")
    place = directory("SLUICE_REAL_VALIDATOR", "lib", "python tests/real/get.py validator")
    source = Path(__file__).with_name("validator") / "Validator.java"
    command = (
        java, "-Xmx1500m", "-XX:TieredStopAtLevel=1", f"-Duser.home={place / 'home'}", "-cp", f"{place}/lib/*", source,
    )  # fmt: skip
    with scratch() as logs, running("HL7's validator", command, logs / "log", ends_with_input=True) as server:
        server.wait(lambda: server.line("listening ") is not None, 280)
        yield f"http://{HOST}:{server.line('listening ')}"
