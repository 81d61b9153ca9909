"""The block ``report``: what the release report shows, and how strict the gate is (document 5)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field

from config.fields import Boolean, ConfigBlock, Integer, KeyKind, Text, one_of


class Language(StrEnum):
    """The languages of the page and of the form."""

    EN = "en"
    DE = "de"


class QuasiIdentifier(StrEnum):
    """Quasi-identifiers: values that distinguish patients without naming them (document 5, section 8)."""

    BIRTH_YEAR = "Patient.birthDate"
    SEX = "Patient.gender"
    REGION = "Patient.address.postalCode"


class OnStop(StrEnum):
    """Action on a stop when no person reviews the data before they are sent."""

    TELL = "tell"
    FAIL = "fail"


Quasi = Annotated[QuasiIdentifier, KeyKind.CHOICE, BeforeValidator(one_of(QuasiIdentifier))]


class ReportConfig(ConfigBlock):
    """``report``: the release report, which a person sees before data leaves the site."""

    enabled: Boolean = Field(
        True,
        description="Make the release report: before each `wait`, before data leave without one, and at the end of a "
        "job with either",
    )
    k: Integer = Field(5, ge=3, description="Patient counts below this are not shown as numbers in the release report")
    language: Annotated[Language, KeyKind.CHOICE, BeforeValidator(one_of(Language))] = Field(
        Language.EN, description="Language of the report page, its short form and the release form: `en` or `de`"
    )
    quasi_identifiers: Annotated[tuple[Quasi, ...], KeyKind.LIST] = Field(
        tuple(QuasiIdentifier),
        description="Attributes by which patients may be distinguished: any of these (of the birth date, the year)",
    )
    region_prefix: Integer = Field(
        2,
        ge=0,
        le=10,
        description="Number of leading characters of the postal code that count as the region of a patient",
    )
    purpose: Text | None = Field(
        None,
        examples=["Quality of care after a hip replacement"],
        description="Purpose of the data, shown in the report (GDPR Art. 30)",
    )
    legal_basis: Text | None = Field(
        None,
        examples=["Broad consent, GDPR Art. 6(1)(a) and 9(2)(a)"],
        description="Legal basis for sending the data, shown in the report",
    )
    retention: Text | None = Field(
        None,
        examples=["Until 2036, then deleted"],
        description="How long the recipient keeps the data, shown in the report",
    )
    contact: Text | None = Field(
        None,
        examples=["data-steward@hospital.example"],
        description="Whom to ask about the release, shown in the report",
    )
    recipient: Text | None = Field(
        None, examples=["Research project Demo"], description="Recipient of the data, shown in the report"
    )
    on_stop: Annotated[OnStop, KeyKind.CHOICE, BeforeValidator(one_of(OnStop))] = Field(
        OnStop.TELL,
        description="Effect of a stop if no `wait` comes before `send`: `tell` reports and records it, `fail` ends the "
        "job before the first request, with exit code 5",
    )
