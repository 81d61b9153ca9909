"""Errors of a request to ``$run``: in the request, its view, or its data."""

from __future__ import annotations


class FlatteningError(Exception):
    """A request cannot be answered with rows. The message contains no data of a resource."""

    status = 400
    """HTTP status if the service does not answer every failure with 500."""
    code = "invalid"
    """Issue code for that status."""

    @property
    def diagnostics(self) -> str:
        """Text for developers in the answer. *Quirk of the deployed service, kept:* may quote data."""
        return f"{type(self).__name__}: {self}"


class RequestError(FlatteningError):
    """The body or the query is invalid for the operation."""


class NotAcceptableError(FlatteningError):
    """``Accept`` does not ask for NDJSON."""

    status = 406
    code = "not-supported"


class MediaTypeError(FlatteningError):
    """``Content-Type`` is not FHIR JSON."""

    status = 415
    code = "not-supported"


class ViewError(FlatteningError):
    """A ViewDefinition cannot be run. The message names the location; raised before any resource is read."""

    status = 422
    code = "invalid"


class ResourceError(FlatteningError):
    """The view cannot be applied to a resource."""

    status = 422
    code = "processing"


class CollectionValueError(ResourceError):
    """Several values for a column without ``collection``."""

    def __init__(self, column: str, path: str, values: str) -> None:
        super().__init__(f"Collection value for column {column} ({path})")
        self._values = values

    @property
    def diagnostics(self) -> str:
        """Message with the values, for the developer of a view."""
        return f"{super().diagnostics} => {self._values}"
