"""What a job that goes on has its own copies of: the CRTDL and the patients it was started with.

A job rests on its copies once a step is complete or a submission was begun (and not refused). From then on the files it
was started with may change; vanish they may as soon as there are copies.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from flows.job.inputs import JobInputs
from tasks.extractor.submission import begun, patients_file
from tasks.shared.fhir.crtdl_preprocessing import effective_file


@dataclass(frozen=True)
class KeptInputs:
    """The files a job reads: ``crtdl`` is its copy, ``None`` where the one it was started with is read (again)."""

    crtdl: Path | None = None
    patients: Path | None = None

    @classmethod
    def of(cls, inputs: JobInputs, job_dir: Path | None) -> KeptInputs:
        """Those of a job's directory; a job that is about to start has none, and reads what it is given."""
        patients = Path(inputs.patients) if inputs.patients is not None else None
        if job_dir is None:
            return cls(patients=patients)
        rests = begun(job_dir) or any(job_dir.glob(".results/*-*.json"))
        # os.path, not Path: a directory above that may not be entered is an answer here, no exception.
        vanished = inputs.crtdl is not None and not os.path.exists(inputs.crtdl)  # noqa: PTH110
        return cls(
            crtdl=effective_file(job_dir) if rests or vanished else None,
            patients=patients_file(job_dir, patients) if patients is not None else None,
        )
