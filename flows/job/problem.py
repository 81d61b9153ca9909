"""The error that ended a run of a job, as its record has it."""

from __future__ import annotations

from tasks.shared.errors import SluiceError
from tasks.shared.report import StoredModel


class Problem(StoredModel):
    """An error that ended a run of a job; ``step`` is ``None`` if no step raised it."""

    reference: str
    message: str
    context: str | None = None
    hint: str | None = None
    transient: bool = False
    exit_code: int = 1
    step: str | None = None

    @classmethod
    def of(cls, error: SluiceError, step: str | None = None) -> Problem:
        """Return the record of one error."""
        return cls.model_validate(
            {name: getattr(error, name) for name in cls.model_fields if name != "step"} | {"step": step}
        )

    def error(self) -> SluiceError:
        """Return the error again."""
        error = SluiceError(self.reference, self.message, context=self.context, hint=self.hint)
        error.transient, error.exit_code = self.transient, self.exit_code  # type: ignore[misc]
        return error

    def render(self) -> str:
        """Return the text shown to a person."""
        return self.error().render()
