"""Units of jobs that a test holds, so that what there is to see stays for as long as the test looks."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from deployments.sandbox.extraction.units import UnitControl


class UnitPace:
    """Holds every unit where ``batch_delay`` would only slow it down, until it is let go; ``ExtractionOptions.wait``.

    Who looks first at what is held, then at the job, and then lets go what was held before, sees every state of it.
    """

    def __init__(self) -> None:
        self._gates: list[threading.Event] = []

    def __call__(self, control: UnitControl, seconds: float) -> None:
        """Hold a unit here; a unit that is aborted goes on by itself, as from any wait."""
        gate = threading.Event()
        self._gates.append(gate)
        try:
            while not gate.wait(0.01):
                control.check()
        finally:
            self._gates.remove(gate)

    def held(self) -> list[threading.Event]:
        """What is held now."""
        return list(self._gates)

    def let_go(self, held: Iterable[threading.Event]) -> None:
        """Let these go on, to where they are held next."""
        for gate in held:
            gate.set()
