"""What can be wrong with a request to ``$run``: the request, its view, or its data."""

from __future__ import annotations


class FlatteningError(Exception):
    """A request that cannot be answered with rows. The message holds no data of a resource."""

    status = 400
    """HTTP status where the service does not answer every failure with 500."""
    code = "invalid"
    """Issue code there."""

    @property
    def diagnostics(self) -> str:
        """What a developer reads in the answer. *Quirk of the deployed service, kept:* it may quote data."""
        return f"{type(self).__name__}: {self}"


class RequestError(FlatteningError):
    """The body or the query is not what the operation takes."""


class NotAcceptableError(FlatteningError):
    """``Accept`` does not ask for NDJSON."""

    status = 406
    code = "not-supported"


class MediaTypeError(FlatteningError):
    """``Content-Type`` is not FHIR JSON."""

    status = 415
    code = "not-supported"


class ViewError(FlatteningError):
    """A ViewDefinition that cannot be run; the message names the place in it. Raised before any resource is read."""

    status = 422
    code = "invalid"


class ResourceError(FlatteningError):
    """A resource that the view cannot be applied to."""

    status = 422
    code = "processing"


class CollectionValueError(ResourceError):
    """More than one value for a column that does not say ``collection``."""

    def __init__(self, column: str, path: str, values: str) -> None:
        super().__init__(f"Collection value for column {column} ({path})")
        self._values = values

    @property
    def diagnostics(self) -> str:
        """With the values, as a developer of a view needs them."""
        return f"{super().diagnostics} => {self._values}"
