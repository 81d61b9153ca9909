"""What a request to ``$run`` brings: Parameters with a view and resources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from deployments.sandbox.common.json_text import decode_decimals
from deployments.sandbox.flattening.problem import RequestError
from deployments.sandbox.flattening.resource import Resource

_COMPANION = re.compile(rb'"_|null')
"""In the text of every resource with ids or extensions of primitives (and of some without, which does no harm)."""


_NONE = msgspec.Raw()


class _Parameter(msgspec.Struct):
    name: str
    resource: msgspec.Raw = _NONE


class _Parameters(msgspec.Struct, rename="camel"):
    resource_type: str
    parameter: list[_Parameter] = []


_decoder = msgspec.json.Decoder(_Parameters)


@dataclass(frozen=True, repr=False)
class RunRequest:
    """A request, taken apart but for its resources."""

    view: bytes
    """The ViewDefinition."""
    _resources: list[msgspec.Raw]

    def __len__(self) -> int:
        """Number of resources."""
        return len(self._resources)

    def resources(self) -> Iterator[Resource]:
        """The resources in order, each read when it is asked for. Raises ``RequestError``."""
        for number, raw in enumerate(self._resources):
            text = bytes(raw)
            try:
                data = decode_decimals(text)
            except (ValueError, RecursionError):
                raise RequestError(f"resources[{number}] cannot be read as JSON") from None
            if not isinstance(data, dict):
                raise RequestError(f"resources[{number}] is not a resource")
            yield Resource(data, has_companions=_COMPANION.search(text) is not None)


def read_request(body: bytes) -> RunRequest:
    """Take a body apart. Raises ``RequestError``."""
    try:
        parameters = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        what = str(error) if isinstance(error, msgspec.ValidationError) else "no JSON that can be read"
        raise RequestError(f"the body is not a Parameters resource: {what}") from None
    if parameters.resource_type != "Parameters":
        raise RequestError("the body is not a Parameters resource")
    views: list[bytes] = []
    resources: list[msgspec.Raw] = []
    for number, each in enumerate(parameters.parameter):
        if each.resource is _NONE or each.name not in ("viewDefinition", "resources"):
            raise RequestError(f"parameter[{number}] is neither a viewDefinition nor one of the resources")
        if each.name == "viewDefinition":
            views.append(bytes(each.resource))
        else:
            resources.append(each.resource)
    if len(views) != 1:
        raise RequestError(f"there are {len(views)} parameters with the name viewDefinition instead of one")
    return RunRequest(views[0], resources)
