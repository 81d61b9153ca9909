"""Hold the units of jobs, so that a test can see each state for as long as it needs."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from deployments.sandbox.extraction.engine import UnitControl


class UnitPace:
    """Holds every unit during ``batch_delay`` until it is released; use as ``ExtractionOptions.wait``.

    A test that reads the held units, then the job, and then releases those units, sees every state of the job.
    """

    def __init__(self) -> None:
        self._gates: list[threading.Event] = []

    def __call__(self, control: UnitControl, seconds: float) -> None:
        """Hold a unit here; an aborted unit continues by itself, as from any wait."""
        gate = threading.Event()
        self._gates.append(gate)
        try:
            while not gate.wait(0.01):
                control.check()
        finally:
            self._gates.remove(gate)

    def held(self) -> list[threading.Event]:
        """Return the units held now."""
        return list(self._gates)

    def let_go(self, held: Iterable[threading.Event]) -> None:
        """Release these units until they are held again."""
        for gate in held:
            gate.set()
