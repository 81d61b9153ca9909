"""One model per service block of document 1, with the keys that document 3 adds.

Descriptions become the reference page and the JSON Schema; sizes are in MiB where the key says ``_mb``.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from config.auth import AuthConfig
from config.fields import (
    BaseUrl,
    Boolean,
    ConfigBlock,
    Duration,
    DurationOrZero,
    FilePath,
    FilledText,
    Integer,
    KeyKind,
    RootUrl,
    Secret,
    Text,
    Url,
    one_of,
)

DEFAULT_STALL_TIMEOUT = timedelta(minutes=1)
DEFAULT_FLATTENING_MB = 500
DEFAULT_SEND_BATCH = 100

SHORTEST = timedelta(milliseconds=1)
"""The shortest timeout that is not a slip."""


class SendMode(StrEnum):
    """Format in which the send step sends its input."""

    DIRECT_RESOURCE_LOAD = "direct_resource_load"
    TRANSFER_LOAD = "transfer_load"
    S3_UPLOAD = "s3_upload"


class OutputFormat(StrEnum):
    """File format that the flattening step writes."""

    CSV = "csv"


class ResidualIdentifiers(StrEnum):
    """Action of the pseudonymizer step when identifiers of persons come back unchanged."""

    STOP = "stop"
    WARN = "warn"


def _zero_is(default: int | timedelta) -> AfterValidator:
    """Zero selects the default (document 1)."""
    return AfterValidator(lambda value: value or default)


StallTimeout = Annotated[DurationOrZero, _zero_is(DEFAULT_STALL_TIMEOUT)]
ResidualKey = Annotated[ResidualIdentifiers, KeyKind.CHOICE, BeforeValidator(one_of(ResidualIdentifiers))]
ModeKey = Annotated[SendMode, KeyKind.CHOICE, BeforeValidator(one_of(SendMode))]
FormatKey = Annotated[OutputFormat, KeyKind.CHOICE, BeforeValidator(one_of(OutputFormat))]


class ExtractorConfig(ConfigBlock):
    """``services.extractor``: the extraction server."""

    base_url: RootUrl | None = Field(
        None,
        examples=["https://extraction.hospital.example"],
        description="Extraction server URL, without `/fhir`. Required if the extractor step is enabled",
    )
    auth: AuthConfig = Field(default_factory=AuthConfig)
    extraction_timeout: Duration = Field(
        timedelta(minutes=30),
        ge=SHORTEST,
        description="Liveness window, not a cap on the whole extraction: the longest time without any response; "
        "every 200 or 202 of a status poll resets it",
    )
    polling_interval: Duration = Field(
        timedelta(seconds=5), ge=timedelta(seconds=1), description="First interval between status polls"
    )
    max_polling_interval: Duration = Field(
        timedelta(seconds=30),
        ge=timedelta(seconds=1),
        description="Cap of the poll interval, which doubles. At least `polling_interval`",
    )
    file_ready_retries: Integer = Field(
        10, description="Repeats of the check that a result file is available. 0 or less turns the check off"
    )
    file_ready_interval: Duration = Field(timedelta(seconds=10), description="Delay between two availability checks")
    download_stall_timeout: StallTimeout = Field(
        DEFAULT_STALL_TIMEOUT,
        description="A download is given up when no byte of it arrives for this long, and has no other limit: one byte "
        "in each window is enough. 0 selects the default",
    )
    max_concurrent_downloads: Integer = Field(4, ge=1, description="Result files downloaded at once")
    request_timeout: Duration = Field(
        timedelta(minutes=1),
        ge=SHORTEST,
        description="Limit of one request other than a download, from connecting to the last byte of the answer: "
        "submission, poll, Task call",
    )


class PseudonymizerConfig(ConfigBlock):
    """``services.pseudonymizer``: the pseudonymization service."""

    url: RootUrl | None = Field(
        None,
        examples=["https://pseudonyms.hospital.example"],
        description="Server root URL, without `/fhir`. Required if the pseudonymizer step is enabled",
    )
    bundle_split_threshold_mb: Integer = Field(10, ge=1, le=100, description="Bundles larger than this (MiB) are split")
    timeout: Duration = Field(
        timedelta(seconds=30),
        ge=SHORTEST,
        description="Limit of one request, from connecting to the last byte of the answer. Raise it for large bundles",
    )
    max_concurrent_requests: Integer = Field(4, ge=1, description="Requests in flight at once")
    auth: AuthConfig = Field(default_factory=AuthConfig)
    anonymization_config: FilePath | None = Field(
        None,
        examples=["anonymization.yaml"],
        description="Anonymization YAML file, sent with each request (needs pseudonymization service 2.34.0 or "
        "later). Without it the service uses its own file. `--anonymization-config` overrides it",
    )
    residual_identifiers: ResidualKey = Field(
        ResidualIdentifiers.STOP,
        description="When names, addresses, numbers or pictures of persons come back as they went: `stop` or `warn`",
    )
    kept_identifiers: Annotated[tuple[FilledText, ...], KeyKind.LIST] = Field(
        (),
        examples=[("https://hospital.example/sid/pseudonym", "Practitioner.name")],
        description="Identifier systems (URLs) and paths (`Practitioner.name`) that are kept on purpose: counted and "
        "shown, no stop",
    )


class FlatteningConfig(ConfigBlock):
    """``services.flattening``: the flattening service."""

    service_url: RootUrl | None = Field(
        None,
        examples=["https://flattening.hospital.example"],
        description="Flattening service URL, without `/fhir`. Required if the flattening step is enabled",
    )
    lookup_path: FilePath | None = Field(
        None,
        examples=["lookup.json"],
        description="Lookup table file (JSON). Required if the flattening step is enabled",
    )
    formats: Annotated[tuple[FormatKey, ...], KeyKind.LIST] = Field(
        (OutputFormat.CSV,),
        min_length=1,
        description="Output formats: `csv` alone",
    )
    timeout: Duration = Field(
        timedelta(minutes=30),
        ge=SHORTEST,
        description="Limit of one request, from connecting to the last row, however many there are",
    )
    batch_size_mb: Annotated[Integer, _zero_is(DEFAULT_FLATTENING_MB)] = Field(
        DEFAULT_FLATTENING_MB,
        ge=0,
        description="Memory budget (MiB) of all attribute groups together. 0 selects the default",
    )


class TransferConfig(ConfigBlock):
    """``services.send.transfer``: only for ``transfer_load``."""

    project_identifier: Text | None = Field(
        None, examples=["heart-failure"], description="Project identifier. Required in `transfer_load`"
    )
    organization_identifier: Text | None = Field(
        None, examples=["hospital.example"], description="Organization identifier. Required in `transfer_load`"
    )


class S3Config(ConfigBlock):
    """``services.send.s3``: only for ``s3_upload``."""

    bucket: Text | None = Field(None, examples=["research-results"], description="Bucket name. Required in `s3_upload`")
    region: Text | None = Field(None, examples=["eu-central-1"], description="Region. Required in `s3_upload`")
    access_key_id: Text | None = Field(
        None, examples=["${S3_ACCESS_KEY_ID}"], description="Access key id. Required in `s3_upload`"
    )
    secret_access_key: Secret | None = Field(
        None, examples=["${S3_SECRET_ACCESS_KEY}"], description="Secret key. Required in `s3_upload`"
    )
    endpoint: BaseUrl | None = Field(
        None,
        examples=["https://store.project.example"],
        description="URL of an S3-compatible store. Empty means the default public service",
    )
    use_path_style: Boolean = Field(False, description="Path-style addressing, which many S3-compatible stores need")
    timeout: Duration = Field(
        timedelta(minutes=30),
        ge=SHORTEST,
        description="Limit of one request (a file, or a part of one), from connecting to the last byte of the answer",
    )
    prefix: Text | None = Field(None, examples=["incoming"], description="Put in front of every object key")


class SendConfig(ConfigBlock):
    """``services.send``: a FHIR server, a transfer target or an S3-compatible bucket."""

    send_as: ModeKey | None = Field(
        None,
        examples=[SendMode.DIRECT_RESOURCE_LOAD],
        description="`direct_resource_load`, `transfer_load` or `s3_upload`. Required if the send step is enabled",
    )
    url: RootUrl | None = Field(
        None,
        examples=["https://fhir.project.example"],
        description="FHIR server root URL, without `/fhir`. Required for `direct_resource_load` and "
        "`transfer_load`, ignored for `s3_upload`",
    )
    batch_size: Annotated[Integer, _zero_is(DEFAULT_SEND_BATCH)] = Field(
        DEFAULT_SEND_BATCH,
        ge=0,
        le=1000,
        description="Most resources in one transaction (`direct_resource_load`). 0 selects the default",
    )
    max_concurrent_requests: Integer = Field(2, ge=1, description="Transactions in flight at once")
    timeout: Duration = Field(
        timedelta(minutes=5),
        ge=SHORTEST,
        description="Limit of one request to a FHIR server, from connecting to the last byte of the answer; an upload "
        "of `transfer_load` has a second for each 256 KiB on top. `s3_upload` has `s3.timeout`",
    )
    auth: AuthConfig = Field(
        default_factory=AuthConfig,
        description="Credentials of the FHIR server; in `s3_upload`, Basic credentials of an upstream proxy",
    )
    transfer: TransferConfig = Field(default_factory=TransferConfig)
    s3: S3Config = Field(default_factory=S3Config)


class ValidationConfig(ConfigBlock):
    """``services.validation``: the validation service."""

    url: BaseUrl | None = Field(
        None,
        examples=["https://validator.hospital.example"],
        description="Validation service URL. Required if the validation step is enabled",
    )
    max_concurrent_requests: Integer = Field(4, ge=1, description="Requests in flight at once")
    bundle_chunk_size_mb: Integer = Field(10, ge=1, description="Size (MiB) of the Bundles that are sent")
    fail_on_error: Boolean = Field(
        True, description="Stop the pipeline after the validation step when it found errors in the data"
    )


class LocalImportConfig(ConfigBlock):
    """``services.local_import``: a directory of NDJSON files."""

    dir: FilePath | None = Field(None, examples=["data"], description="Default import directory. `--dir` overrides it")
    recursive: Boolean = Field(
        False, description="Look for NDJSON files in subdirectories too, not in the top level only"
    )


class HttpImportConfig(ConfigBlock):
    """``services.http_import``: files behind URLs."""

    urls: Annotated[tuple[Url, ...], KeyKind.LIST] = Field(
        (),
        # A download link often carries its permission in the query.
        repr=False,
        examples=[("https://files.hospital.example/patients.ndjson",)],
        description="URLs to download, when none is given on the command line",
    )
    stall_timeout: StallTimeout = Field(
        DEFAULT_STALL_TIMEOUT,
        description="A download is given up when no byte of it arrives for this long, and has no other limit: one byte "
        "in each window is enough. 0 selects the default",
    )


class CreateGroup(ConfigBlock):
    """Group to create if the group of a rule is missing from the CRTDL."""

    group_name: Text = Field(description="Create the missing group with this name")


class AttributeToAdd(ConfigBlock):
    """One attribute that a rule adds to its group."""

    attribute_ref: FilledText = Field(description="FHIR attribute to add. Required")
    must_have: Boolean = Field(False, description="Whether extraction requires the attribute")
    linked_groups: tuple[Text, ...] = Field((), description="Profile URLs, resolved to group ids, for cross-references")


class EnrichmentRule(ConfigBlock):
    """One rule that completes a CRTDL before it goes to the extraction server."""

    group_reference: FilledText = Field(description="Profile URL of the attribute group. Required")
    create_if_not_exists: CreateGroup | None = Field(None, description="Create the group when it is missing")
    attributes_to_add: tuple[AttributeToAdd, ...] = Field((), description="Attributes to add to the group")


_RULE = {
    "group_reference": "https://www.medizininformatik-initiative.de/fhir/core/modul-person/StructureDefinition/Patient",
    "create_if_not_exists": {"group_name": "Patient"},
    "attributes_to_add": [{"attribute_ref": "Patient.identifier", "must_have": False, "linked_groups": []}],
}


class CrtdlPreprocessingConfig(ConfigBlock):
    """``services.crtdl_preprocessing``: attributes that are added to the CRTDL before the extraction.

    ``config.enrichments.enrichment_rules`` reads the rules of either form.
    """

    enabled: Boolean = Field(False, examples=[True], description="Enrich the CRTDL before it is used")
    enrichments_path: FilePath | None = Field(
        None, examples=["enrichments.json"], description="JSON file with enrichment rules"
    )
    enrichments: Annotated[tuple[EnrichmentRule, ...], KeyKind.RULES] | None = Field(
        None, examples=[(_RULE,)], description="Inline enrichment rules. Not together with `enrichments_path`"
    )


class ServicesConfig(ConfigBlock):
    """``services``: what the pipeline talks to."""

    extractor: ExtractorConfig = Field(default_factory=ExtractorConfig)
    pseudonymizer: PseudonymizerConfig = Field(default_factory=PseudonymizerConfig)
    flattening: FlatteningConfig = Field(default_factory=FlatteningConfig)
    send: SendConfig = Field(default_factory=SendConfig)
    validation: ValidationConfig = Field(default_factory=ValidationConfig)
    local_import: LocalImportConfig = Field(default_factory=LocalImportConfig)
    http_import: HttpImportConfig = Field(default_factory=HttpImportConfig)
    crtdl_preprocessing: CrtdlPreprocessingConfig = Field(default_factory=CrtdlPreprocessingConfig)
