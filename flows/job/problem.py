"""The error that ended a run of a job, as stored in the record. Turn exceptions and findings into one error."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ConfigDict

from config import ConfigError
from tasks.shared.errors import InputError, NetworkError, SluiceError, internal_error
from tasks.shared.report import StoredModel


class Problem(StoredModel):
    """An error that ended a run of a job; ``step`` is ``None`` if no step raised it."""

    model_config = ConfigDict(from_attributes=True)

    reference: str
    message: str
    context: str | None = None
    hint: str | None = None
    transient: bool = False
    exit_code: int = 1
    step: str | None = None

    @classmethod
    def of(cls, error: SluiceError, step: str | None = None) -> Problem:
        """Return the error in the form of the record."""
        return cls.model_validate(error).model_copy(update={"step": step})

    def error(self) -> SluiceError:
        """Return the error that was stored."""
        error = SluiceError(self.reference, self.message, context=self.context, hint=self.hint)
        error.transient, error.exit_code = self.transient, self.exit_code  # type: ignore[misc]
        return error

    def render(self) -> str:
        """Return the text shown to a person."""
        return self.error().render()


def reported(error: Exception) -> SluiceError:
    """Return an exception as one error for the record. It joins the findings of a ``ConfigError``."""
    if isinstance(error, ConfigError):
        wrong = [finding for finding in error.findings if finding.level == "error"]
        return as_one_error([InputError(one.reference, one.message, context=one.key, hint=one.hint) for one in wrong])
    return error if isinstance(error, SluiceError) else internal_error(error)


def as_one_error(findings: Sequence[SluiceError]) -> SluiceError:
    """Return all findings as one error for the record, with their common exit code (``exit_code``)."""
    if len(findings) == 1:
        return findings[0]
    kind = NetworkError if exit_code(findings) == 3 else InputError
    about = ["; ".join(filter(None, (one.context, one.hint))) for one in findings]
    lines = [f"- {one.message}" + (f" ({more})" if more else "") for one, more in zip(findings, about, strict=True)]
    return kind("preflight", "\n".join([f"{len(findings)} checks failed", *lines]))


def exit_code(findings: Sequence[SluiceError]) -> int:
    """Return 2 if any finding is about configuration or input, 3 if all are about services."""
    return 3 if all(finding.transient for finding in findings) else 2
