"""The send step: direct_resource_load, transfer_load and s3_upload (docs/services.md)."""

from typing import Final

STATE: Final = "send"
"""Directory of the step's own files, below the job directory."""

FHIR: Final = "application/fhir+json"
HEADERS: Final = {"Content-Type": FHIR, "Accept": FHIR, "Prefer": "return=minimal"}
