"""The models of a CRTDL and of its cohort query, the CCDL: their structure is checked by reading it (document 3 §3).

``inclusionCriteria`` is an AND of ORs, ``exclusionCriteria`` an OR of ANDs. Unknown keys are left alone, and null
counts as absent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

from annotated_types import Predicate
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictStr,
    ValidationError,
    ValidationInfo,
    WrapValidator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from deployments.sandbox.common.r4 import RESOURCE_TYPES
from tasks.shared.fhir.crtdl_model import type_of

SCHEMA_REFERENCE = "crtdl-schema"
"""The reference of what has not the form that it must have."""

_DATE = re.compile(r"\d{4}(-\d{2}(-\d{2}(T.*)?)?)?\Z", re.ASCII)


class _CrtdlPart(BaseModel):
    # Most starts of the program read no query: the models are built when the first one is read.
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, validate_default=True, defer_build=True)


def problem(reference: str, message: str) -> PydanticCustomError:
    """Return the error of a key."""
    return PydanticCustomError(reference, "{message}", {"message": message})


def _of_both(reference: str, message: str) -> PydanticCustomError:
    """Return an error about two keys together, raised when the later one is read: it is about their object."""
    return PydanticCustomError(reference, "{message}", {"message": message, "above": True})


def _only(*kinds: str) -> WrapValidator:
    """Return a validator that checks a key only if the object's ``type`` is one of ``kinds``."""

    def read(value: Any, handler: Callable[[Any], Any], info: ValidationInfo) -> Any:
        return handler(value) if info.data.get("type") in kinds else None

    return WrapValidator(read)


def _until(first: str) -> AfterValidator:
    """Return a validator for the later of two dates: one of both is set, and it is not before ``first``."""

    def check(end: str | None, info: ValidationInfo) -> str | None:
        begin, names = info.data.get(first, ""), (to_camel(first), to_camel(info.field_name or ""))
        if begin is None and end is None:
            raise _of_both(SCHEMA_REFERENCE, f"needs {', '.join(names)} or both")
        if begin and end and end[: len(begin)] < begin[: len(end)]:
            raise _of_both("crtdl-date-order", f"{names[1]} is before {names[0]}")
        return end

    return AfterValidator(check)


def _version(number: str) -> AfterValidator:
    def check(value: Any) -> Any:
        if not isinstance(value, str) or not re.match(rf"({number}|https?://\S+)\Z", value):
            raise problem("crtdl-version", f'must be "{number}", or the URL of a schema')
        return value

    return AfterValidator(check)


def _read_date(value: Any) -> str | None:
    """Return the date as written: a year, a month or a day."""
    try:
        if value is None or (_DATE.match(value) and date.fromisoformat(f"{value}-01-01"[:10])):
            return value and value[:10]  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        pass
    raise problem(SCHEMA_REFERENCE, "must be a date like 2021-06-30")


def _not_below_least(most: float, info: ValidationInfo) -> float:
    if most < info.data.get("min_value", most):
        raise _of_both(SCHEMA_REFERENCE, "maxValue is below minValue")
    return most


def _list_of_criteria(value: Any) -> Any:
    if not isinstance(value, list):
        raise problem(SCHEMA_REFERENCE, "must be a list of criteria")
    return value


def _has_entries(value: Any) -> Any:
    # pydantic's own bound counts entries that are right: one wrong entry would be two findings.
    if value == []:
        raise problem(SCHEMA_REFERENCE, "must have at least 1 entry")
    return value


_ABSENT: Any = None
"""What a key of another ``type`` has. Of its own type it is checked like null, and is missing."""

_NOT_EMPTY = BeforeValidator(_has_entries)
_Text = Annotated[StrictStr, Predicate(lambda text: bool(text.strip()))]
_Date = Annotated[str | None, PlainValidator(_read_date)]


class QueryCoding(_CrtdlPart):
    """A code of a query."""

    system: _Text
    code: _Text
    display: StrictStr | None = None


_Codings = Annotated[tuple[QueryCoding, ...], _NOT_EMPTY]


class _Unit(_CrtdlPart):
    code: _Text


class CriterionFilter(_CrtdlPart):
    """A condition on a value: one of some concepts, or a quantity within limits."""

    type: str
    selected_concepts: Annotated[_Codings, _only("concept")] = _ABSENT
    comparator: Annotated[Literal["gt", "ge", "lt", "le", "eq"], _only("quantity-comparator")] = _ABSENT
    value: Annotated[StrictFloat, _only("quantity-comparator")] = _ABSENT
    min_value: Annotated[StrictFloat, _only("quantity-range")] = _ABSENT
    max_value: Annotated[StrictFloat, AfterValidator(_not_below_least), _only("quantity-range")] = _ABSENT
    unit: Annotated[_Unit | None, _only("quantity-comparator", "quantity-range")] = None


class _ValueFilter(CriterionFilter):
    type: Literal["concept", "quantity-comparator", "quantity-range"]


class AttributeFilter(CriterionFilter):
    """A condition on another element of the resource, or on a resource that it refers to."""

    type: Literal["concept", "quantity-comparator", "quantity-range", "reference"]
    attribute_code: QueryCoding
    criteria: Annotated[tuple[CohortCriterion, ...], _NOT_EMPTY, _only("reference")] = _ABSENT


class _TimeRestriction(_CrtdlPart):
    after_date: _Date = None
    before_date: Annotated[_Date, _until("after_date")] = None


class CohortCriterion(_CrtdlPart):
    """A criterion of a cohort: what one resource of a patient must be."""

    context: QueryCoding
    term_codes: _Codings
    value_filter: _ValueFilter | None = None
    attribute_filters: tuple[AttributeFilter, ...] | None = None
    time_restriction: _TimeRestriction | None = None


_Row = Annotated[tuple[CohortCriterion, ...], _NOT_EMPTY, BeforeValidator(_list_of_criteria)]


class CohortDefinition(_CrtdlPart):
    """A cohort query, the CCDL."""

    version: Annotated[Any, _version("2")]
    inclusion_criteria: Annotated[tuple[_Row, ...], _NOT_EMPTY]
    exclusion_criteria: tuple[_Row, ...] | None = None


@dataclass(frozen=True)
class Attribute:
    """One element that a group asks for; ``linked_groups`` are ids of the groups its references may fill."""

    ref: Annotated[_Text, Field(alias="attributeRef")]
    must_have: Annotated[StrictBool, Field(alias="mustHave")]
    linked_groups: Annotated[
        tuple[_Text, ...], Field(alias="linkedGroups"), BeforeValidator(lambda links: () if links is None else links)
    ] = ()


class GroupFilter(_CrtdlPart):
    """A condition on the resources of a group."""

    type: Literal["token", "date"]
    name: _Text
    codes: Annotated[_Codings, _only("token")] = _ABSENT
    start: Annotated[_Date, _only("date")] = None
    end: Annotated[_Date, _until("start"), _only("date")] = None


@dataclass(frozen=True)
class AttributeGroup:
    """One attribute group; ``reference`` is the canonical URL of its profile."""

    id: _Text
    name: Annotated[StrictStr | None, Field(default=None)]
    reference: Annotated[_Text, Field(alias="groupReference")]
    attributes: tuple[Attribute, ...]
    reference_only: Annotated[StrictBool | None, Field(alias="includeReferenceOnly")] = None
    filter: tuple[GroupFilter, ...] | None = None

    @property
    def resource_type(self) -> str:
        """Return the type of its attributes: the first part of an element's id. Of a group without attributes that
        of its profile, where the URL tells; else empty.
        """
        if self.attributes:
            return type_of(self.attributes[0].ref)
        name = self.reference.partition("|")[0].rstrip("/").rpartition("/")[2]
        return name if name in RESOURCE_TYPES else ""


class _Extraction(_CrtdlPart):
    attribute_groups: Annotated[tuple[AttributeGroup, ...], _NOT_EMPTY]


class CrtdlDocument(_CrtdlPart):
    """A whole CRTDL."""

    version: Annotated[Any, _version("1")]
    display: StrictStr | None = None
    cohort_definition: CohortDefinition
    data_extraction: _Extraction


_MESSAGES = {
    "missing": "is missing",
    "model_type": "must be an object",
    "dataclass_type": "must be an object",
    "tuple_type": "must be a list",
    "string_type": "must be text that is not empty",
    "predicate_failed": "must be text that is not empty",
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "recursion_loop": "is nested too deeply",
}


def model_findings(error: ValidationError) -> Iterator[tuple[str, str, str]]:
    """Return pydantic's errors as reference, message and key path of the document, without its values."""
    for detail in error.errors(include_url=False):
        place = tuple(part if isinstance(part, int) else to_camel(part) for part in detail["loc"])
        context, reference = detail.get("ctx", {}), SCHEMA_REFERENCE
        message = _MESSAGES.get(detail["type"], "has a value of the wrong kind")
        if context.get("above"):
            reference, message, place = detail["type"], context["message"], place[:-1]
        elif detail["input"] is None and isinstance(place[-1], str):
            message = _MESSAGES["missing"]
        elif "message" in context:
            reference, message = detail["type"], context["message"]
        elif detail["type"] == "literal_error":
            message = "must be one of " + context["expected"].replace("'", "").replace(" or ", ", ")
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
        yield reference, message, path.lstrip(".")
