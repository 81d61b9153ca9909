"""Classify identifying elements (document 5, section 7a) by the type that R4 gives them.

A path is known by the types along it: ``HumanName``, ``Address``, ``ContactPoint``, ``Identifier``, ``Attachment``,
``Annotation``, ``Narrative``, ``Reference``, ``CodeableConcept``, and texts, in every resource of R4, in its extensions
and contained resources. The table of types, ``r4_types.json``, is made of the published definitions by
``tests/tasks/release_report/measure/test_r4_types.py``, and so is ``r4_named.json``: the references that may be to a
person or an organization. What R4 does not know is told by its name, or is a text.

The kinds:

========================  ===========================================================================================
``name``                  parts of a HumanName, names of relatives, what profiles say of names in extensions
``address``               line, text and coordinates of an address
``address-part``         city, district, state, postal code, country
``telecom``               a telephone number, an e-mail address
``identifier``            the value of an identifier, a DICOM UID, a number of an insured person
``device``                serial numbers of devices, as implants have them
``photo``, ``attachment``  data, address, title and hash of a picture, or of anything else
``narrative``             the text that FHIR calls narrative
``display``               of a reference
``concept-text``          the text of a CodeableConcept
``text``                  any other free text
``number``                an identifier of ``import/`` where none belongs: in an id, a reference, a code, a URL
``undefined``             what R4 does not define, with text or elements in it
========================  ===========================================================================================

Names, addresses, numbers of those who are no person (``persons``: Organization, Location …) have no kind;
but the display of a reference to an organization counts as a name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tasks.shared.fhir import r4

TABLE: Final = Path(__file__).parent / "r4_types.json"
NAMED: Final = Path(__file__).parent / "r4_named.json"

PART: Final = re.compile(r"([^.(]+)((?:\([^)]*\))?)(?:\.|\Z)")
"""A part of a path: the name of an element, and the URL of an extension in brackets."""

TEXTS: Final = frozenset({"string", "markdown", "xhtml", "base64Binary"})
LEFT: Final = frozenset({"name", "address", "telecom", "photo", "attachment", "narrative"})
"""Kinds that are a stop wherever they are left."""
DATES: Final = frozenset({"date", "dateTime", "instant"})
QUANTITIES: Final = frozenset({"Quantity", "Age", "Count", "Distance", "Duration"})

_IMPERSONAL: Final = r4.NO_PERSONS | {
    "HealthcareService", "InsurancePlan", "Endpoint", "Substance", "MedicationKnowledge", "DeviceDefinition",
}  # fmt: skip
_NO_TEXT: Final = frozenset(
    {
        *("unit", "version", "linkId", "lotNumber", "expression", "path", "publisher", "alias", "modelNumber", "data"),
        *("batchNumber", "doseNumberString", "seriesDosesString", "start", "end", "label", "sequence", "nameId"),
    }
)
"""Elements of type ``string`` that hold no text of a person's."""
_NUMBERS: Final = frozenset({"subscriberId", "preAuthRef", "uid", "altId", "requestor"})
_DEVICE: Final = frozenset({"serialNumber", "distinctIdentifier", "carrierHRF", "carrierAIDC", "deviceIdentifier"})
_RELATIVES: Final = frozenset({"FamilyMemberHistory", "AuditEvent_Agent", "ContactDetail", "Contributor"})
_REGION: Final = frozenset({"city", "district", "state", "postalCode", "country"})
_PLACES: Final = re.compile(r"precinct|county|municipality|locality|city|country|state|district", re.IGNORECASE)
_NAMES: Final = re.compile(r"maiden|surname|family-?name|given-?name|own-(name|prefix)|nick-?name|alias", re.IGNORECASE)
_STREET: Final = re.compile(r"street|house-?number|ADXP|geolocation|address", re.IGNORECASE)

_BY_NAME: Final = {
    **r4.ELEMENTS, "note": "Annotation", "coding": "Coding", "meta": "Meta", "contained": "ResourceList",
    "resource": "ResourceList", "subject": "Reference", "patient": "Reference",
}  # fmt: skip
_EVERYWHERE: Final = frozenset({"id", "extension", "modifierExtension"})
_THEIRS: Final = frozenset({"subject", "patient", "beneficiary"})
_SUFFIXES: Final = re.compile(r"value([A-Z]\w*)\Z")
_PRIMITIVES: Final = frozenset(
    {
        *("Base64Binary", "Boolean", "Canonical", "Code", "Date", "DateTime", "Decimal", "Id", "Instant", "Integer"),
        *("Markdown", "Oid", "PositiveInt", "String", "Time", "UnsignedInt", "Uri", "Url", "Uuid"),
    }
)


@functools.cache
def r4_types() -> dict[str, dict[str, str]]:
    """Return the types of R4, and their parts as ``Account_Coverage``, with their elements and the types of these."""
    return msgspec.json.decode(TABLE.read_bytes(), type=dict[str, dict[str, str]])


@functools.cache
def _named() -> dict[str, dict[str, str]]:
    return msgspec.json.decode(NAMED.read_bytes(), type=dict[str, dict[str, str]])


def element(within: str, name: str, *, is_object: bool) -> tuple[str, str]:
    """Return the type of an element below one of another type, and the name of its choice; blank if unknown.

    ``is_object`` says what stands there, for elements that R4 does not have.
    """
    known, _, choice = r4_types().get(within, {}).get(name, "").partition("|")
    if not known:
        if name == "contained":
            known = "ResourceList"
        elif name in ("id", "language"):
            known = "code" if name == "language" else "id"
        elif within and within in r4_types():
            known = "" if not is_object else _guessed(name)
        else:
            known = _guessed(name)
    return known, choice


def is_defined(within: str, name: str) -> bool:
    """Return whether R4 defines such an element."""
    elements = r4_types().get(within)
    if elements is None:
        return False
    return name in elements or name in _EVERYWHERE or (name == "contained" and "meta" in elements)


def knows_type(name: str, *, resource: bool = False) -> bool:
    """Return whether R4 defines such a type, of a resource or of data."""
    return name in (_resources() if resource else r4_types())


def is_published(name: str) -> bool:
    """Return whether resources of a type are published, like questionnaires: their numbers identify nobody."""
    return {"url", "publisher"} <= r4_types().get(name, {}).keys()


def refers_to(within: str, name: str) -> str:
    """Whose name a reference there can show: ``patient`` for the patient's alone, ``person``, ``name`` for that of a
    person or an organization; blank for nobody's."""
    return "patient" if name in _THEIRS else _named().get(within, {}).get(name, "")


def named(word: str, reference: object, kind: object) -> str:
    """Return the word for one reference by the type that it shows or states; ``word`` if there is none."""
    target = kind if isinstance(kind, str) else ""
    if isinstance(reference, str):
        path, searched, _ = reference.partition("/_history/")[0].partition("?")
        target = (path if searched else path.rpartition("/")[0]).rpartition("/")[2] or target
    if target not in _resources() or (word == "patient" and target == "Patient"):
        return word
    return "name" if target in r4.NAMED else ""


NAMES: Final = ("person", "name")
"""Words of a reference that shows somebody's name who may have many patients."""


def is_name(display: str) -> bool:
    """Return whether the display of a reference can be a name: not only the name of a type, and with a letter."""
    return display not in _resources() and any(map(str.isalpha, display))


def _guessed(name: str) -> str:
    if (match := _SUFFIXES.match(name)) is not None:
        kind = match[1]
        return kind[0].lower() + kind[1:] if kind in _PRIMITIVES else kind
    return _BY_NAME.get(name, "Narrative" if name == "text" else "")


def kind_of(name: str, own: str, above: Sequence[str], url: str = "") -> str:
    """Return the kind of a leaf if it identifies a person (see the module).

    ``own`` is its type (blank: not in R4), ``above`` are those around it from the resource inwards, ``url`` is that of
    the innermost extension around it.
    """
    around = above[-1] if above else ""
    resource = next((one for one in reversed(above) if one[:1].isupper() and one in _resources()), "")
    impersonal = resource in _IMPERSONAL and not any(one.endswith("_Contact") for one in above)
    said = own in TEXTS
    if around == "Coding":
        # The key of a town, as profiles give it beside its name.
        return "address-part" if "Address" in above and name in ("code", "display") and not impersonal else ""
    if "HumanName" in above:
        return "name" if said or not own else ""
    if "Address" in above:
        if impersonal:
            return ""
        if name in _REGION or (url and _PLACES.search(url) and not _STREET.search(url)):
            return "address-part"
        return "address" if said or not own or own == "decimal" else ""
    if "Attachment" in above:
        kind = "photo" if "photo" in above else "attachment"
        return kind if _identifies("Attachment", name) or said else ""
    if "ContactPoint" in above:
        return "telecom" if (_identifies("ContactPoint", name) or (said and url)) and not impersonal else ""
    if around == "Identifier" or ("Identifier" in above and around == "Extension"):
        return "identifier" if (_identifies("Identifier", name) or (said and url)) and not impersonal else ""
    if around == "Reference":
        return "display" if name == "display" else ""
    if around == "Narrative":
        return "narrative" if name == "div" else ""
    return _others(name, own, above, url, impersonal=impersonal)


def _identifies(kind: str, name: str) -> bool:
    return name in r4.IDENTIFYING[kind]


def _others(  # noqa: C901 - a list of cases
    name: str, own: str, above: Sequence[str], url: str, *, impersonal: bool
) -> str:
    around = above[-1] if above else ""
    if around == "CodeableConcept":
        return "concept-text" if name == "text" else ""
    if "Meta" in above:
        return ""
    if name in _NUMBERS:
        return "identifier"
    if around.startswith("Device") and name in _DEVICE:
        return "device"
    if name == "name" and around in _RELATIVES and own == "string":
        return "name"
    if own == "base64Binary":
        return "attachment"
    if around == "Extension" and url:
        last = url.rstrip("/").rpartition("/")[2]
        if own in ("string", "markdown", "decimal"):
            if _NAMES.search(last):
                return "name"
            if _STREET.search(url):
                return "address"
        if own in ("string", "markdown"):
            return "text"
        return ""
    if around == "Annotation":
        return "text" if own in ("string", "markdown") else ""
    if own not in ("string", "markdown") or name in _NO_TEXT or name in _REGION:
        return ""
    return "" if impersonal else "text"


_COLUMNS: Final = {
    "identifier": re.compile(r"identifier|mrn|insur(ance|ant)|kvnr|kvid|passport|ssn"),
    "name": re.compile(r"family|given|surname|maiden|(patient|last|first|nick)_?name|prefix|suffix"),
    "telecom": re.compile(r"telecom|phone|e_?mail|fax"),
    "address-part": re.compile(r"city|district|state$|postal|zip|country"),
    "address": re.compile(r"address|street"),
    "narrative": re.compile(r"narrative|_div$"),
    "photo": re.compile(r"photo"),
    "attachment": re.compile(r"attachment"),
    "text": re.compile(r"note|comment|conclusion|free_?text|valuestring|value_string"),
}


def kind_of_column(name: str) -> str:
    """Return the kind of a column of a table by its name, because the table does not state its source."""
    name = name.lower()
    if name.endswith(("_system", "_use", "_type", "_code", "_display", "_start", "_end")):
        return ""
    return next((kind for kind, pattern in _COLUMNS.items() if pattern.search(name)), "")


@functools.cache
def _resources() -> frozenset[str]:
    """Types of R4 that are resources: those with ``meta``, and no data type has it."""
    return frozenset(name for name, elements in r4_types().items() if "meta" in elements and "_" not in name)
