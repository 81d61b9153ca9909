"""The block ``services``: one block for each service (docs/configuration.md)."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator
from pydantic.alias_generators import to_camel

from config.types import (
    MINUTE,
    SECOND,
    AsList,
    AtLeastOne,
    BaseUrl,
    ConfigBlock,
    Duration,
    FilePath,
    FilledText,
    HeaderName,
    Integer,
    RootUrl,
    Secret,
    StallTimeout,
    Text,
    Texts,
    Timeout,
    Urls,
    or_else,
    problem,
    shown,
)

Formats = Annotated[tuple[Literal["csv"], ...], AsList]


class SendMode(StrEnum):
    """Form in which the send step sends its input."""

    DIRECT_RESOURCE_LOAD = "direct_resource_load"
    TRANSFER_LOAD = "transfer_load"
    S3_UPLOAD = "s3_upload"


class AuthConfig(ConfigBlock):
    """Credentials: Basic Auth or OAuth 2.0 client credentials; an API key can be combined with either."""

    username: Text | None = Field(None, description="Basic Auth user name")
    password: Secret | None = Field(None, description="Basic Auth password")
    oauth_issuer_uri: BaseUrl | None = Field(None, description="OAuth 2.0 issuer")
    oauth_client_id: Text | None = Field(None, description="OAuth 2.0 client id")
    oauth_client_secret: Secret | None = Field(None, description="OAuth 2.0 client secret")
    api_key: Secret | None = Field(None, description="API key, sent in a header of its own")
    api_key_header: HeaderName = Field("x-api-key", description="Header that carries `api_key`")

    @property
    def scheme(self) -> Literal["none", "basic", "oauth2"]:
        """Return the scheme of the ``Authorization`` header: OAuth if an issuer is set."""
        if self.oauth_issuer_uri is not None:
            return "oauth2"
        return "basic" if self.username is not None else "none"


class ExtractorConfig(ConfigBlock):
    """The extraction server."""

    base_url: RootUrl | None = Field(None, description="Extraction server URL, without `/fhir`. Required by the step")
    auth: AuthConfig = Field(default_factory=AuthConfig)
    extraction_timeout: Timeout = Field(
        30 * MINUTE, description="Longest time in which no poll is answered with 200 or 202"
    )
    polling_interval: Duration = Field(
        5 * SECOND, ge=SECOND, description="First interval between status polls, from PT1S"
    )
    max_polling_interval: Duration = Field(
        30 * SECOND, validate_default=True, description="Cap of the interval, which doubles with each poll"
    )
    file_ready_retries: Integer = Field(
        10, description="Repeats of the check that a file is there. 0 or less: no check"
    )
    file_ready_interval: Duration = Field(10 * SECOND, description="Delay between two checks of availability")
    download_stall_timeout: StallTimeout = Field(MINUTE, description="Longest time without a byte. 0: the default")
    max_concurrent_downloads: AtLeastOne = Field(4, description="Result files downloaded at once")
    request_timeout: Timeout = Field(MINUTE, description="Time limit of a submission, a poll or a Task call")

    @field_validator("max_polling_interval")
    @classmethod
    def _not_below_first(cls, value: timedelta, info: ValidationInfo) -> timedelta:
        first = info.data.get("polling_interval", value)
        if value < first:
            message = f"({shown(value)}) is below polling_interval ({shown(first)})"
            raise problem("polling-order", message, f"set it to {shown(first)} or more")
        return value


class PseudonymizerConfig(ConfigBlock):
    """The pseudonymization service."""

    url: RootUrl | None = Field(None, description="Server root URL, without `/fhir`. Required by the step")
    bundle_split_threshold_mb: Integer = Field(10, ge=1, le=100, description="Bundles larger than this (MiB) are split")
    timeout: Timeout = Field(30 * SECOND, description="Time limit of a request. Raise it for large Bundles")
    max_concurrent_requests: AtLeastOne = Field(4, description="Requests under way at once")
    auth: AuthConfig = Field(default_factory=AuthConfig)
    anonymization_config: FilePath | None = Field(None, description="Rule file (YAML), sent with each request")
    residual_identifiers: Literal["stop", "warn"] = Field(
        "stop", description="When identifying values come back unchanged: end the step (exit 5), or warn"
    )
    kept_identifiers: Texts = Field((), description="Identifier systems and paths that are kept on purpose: no stop")


class FlatteningConfig(ConfigBlock):
    """The flattening service."""

    service_url: RootUrl | None = Field(None, description="Service URL, without `/fhir`. Required by the step")
    lookup_path: FilePath | None = Field(None, description="Lookup table file (JSON). Required by the step")
    formats: Formats = Field(("csv",), min_length=1, description="Output formats")
    timeout: Timeout = Field(30 * MINUTE, description="Longest time without a byte of an answer")
    batch_size_mb: Annotated[Integer, or_else(500)] = Field(
        500, ge=0, description="Memory budget (MiB). 0: the default"
    )


class TransferConfig(ConfigBlock):
    """Only for `transfer_load`."""

    project_identifier: Text | None = Field(None, description="Project. Required by `transfer_load`")
    organization_identifier: Text | None = Field(None, description="Organization. Required by `transfer_load`")


class S3Config(ConfigBlock):
    """Only for `s3_upload`."""

    bucket: Text | None = Field(None, description="Bucket name. Required by `s3_upload`")
    region: Text | None = Field(None, description="Region. Required by `s3_upload`")
    access_key_id: Text | None = Field(None, description="Access key id. Required by `s3_upload`")
    secret_access_key: Secret | None = Field(None, description="Secret key. Required by `s3_upload`")
    endpoint: BaseUrl | None = Field(None, description="URL of an S3-compatible store, instead of the public service")
    use_path_style: bool = Field(False, description="Path-style addressing, which many S3-compatible stores need")
    timeout: Timeout = Field(30 * MINUTE, description="Time limit of a request: a file, or a part of one")
    prefix: Text | None = Field(None, description="Put in front of every object key")


class SendConfig(ConfigBlock):
    """The destination: a FHIR server, a transfer target or an S3-compatible bucket."""

    send_as: SendMode | None = Field(None, description="How the data are sent. Required by the step")
    url: RootUrl | None = Field(None, description="FHIR server root URL, without `/fhir`. Ignored in `s3_upload`")
    batch_size: Annotated[Integer, or_else(100)] = Field(100, ge=0, le=1000, description="Resources in a transaction")
    max_concurrent_requests: AtLeastOne = Field(2, description="Transactions under way at once")
    timeout: Timeout = Field(5 * MINUTE, description="Time limit of a request. A large zip gets more time by itself")
    auth: AuthConfig = Field(default_factory=AuthConfig)
    transfer: TransferConfig = Field(default_factory=TransferConfig)
    s3: S3Config = Field(default_factory=S3Config)


class ValidationConfig(ConfigBlock):
    """The validation service."""

    url: BaseUrl | None = Field(None, description="Validation service URL. Required by the step")
    max_concurrent_requests: AtLeastOne = Field(4, description="Requests under way at once")
    bundle_chunk_size_mb: AtLeastOne = Field(10, description="Size (MiB) of the Bundles that are sent")
    fail_on_error: bool = Field(True, description="Stop the pipeline after the step if it found errors in the data")


class LocalImportConfig(ConfigBlock):
    """A directory of NDJSON files."""

    dir: FilePath | None = Field(None, description="Default import directory. `--dir` overrides it")
    recursive: bool = Field(False, description="Look for NDJSON files in subdirectories, too")


class HttpImportConfig(ConfigBlock):
    """Files behind URLs."""

    # A download link often carries its permission in the query.
    urls: Urls = Field((), repr=False, description="URLs to download, when none is given on the command line")
    stall_timeout: StallTimeout = Field(MINUTE, description="Longest time without a byte. 0: the default")


class RuleBlock(ConfigBlock):
    """A part of an enrichment rule. Its names are in camelCase in the JSON file."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True)


class CreateGroup(RuleBlock):
    """Group to create if the group of a rule is missing from the CRTDL."""

    group_name: Text = Field(description="Name of the group")


class AttributeToAdd(RuleBlock):
    """One attribute that a rule adds to its group."""

    attribute_ref: FilledText = Field(description="FHIR attribute to add")
    must_have: bool = Field(False, description="Whether extraction requires the attribute")
    linked_groups: tuple[Text, ...] = Field((), description="Profile URLs, resolved to group ids, for cross-references")


class EnrichmentRule(RuleBlock):
    """One rule that completes a CRTDL before it goes to the extraction server."""

    group_reference: FilledText = Field(description="Profile URL of the attribute group")
    create_if_not_exists: CreateGroup | None = Field(None, description="Create the group when it is missing")
    attributes_to_add: tuple[AttributeToAdd, ...] = Field((), description="Attributes to add to the group")


Rules = Annotated[tuple[EnrichmentRule, ...], AsList]
RULE_NAMES = tuple(name for model in (EnrichmentRule, CreateGroup, AttributeToAdd) for name in model.model_fields)


class CrtdlPreprocessingConfig(ConfigBlock):
    """Attributes that are added to the CRTDL before the extraction."""

    enabled: bool = Field(False, description="Enrich the CRTDL before it is used")
    enrichments_path: FilePath | None = Field(None, description="JSON file with enrichment rules")
    enrichments: Rules | None = Field(None, description="Inline rules. Not together with `enrichments_path`")


class ServicesConfig(ConfigBlock):
    """The services of the pipeline."""

    extractor: ExtractorConfig = Field(default_factory=ExtractorConfig)
    pseudonymizer: PseudonymizerConfig = Field(default_factory=PseudonymizerConfig)
    flattening: FlatteningConfig = Field(default_factory=FlatteningConfig)
    send: SendConfig = Field(default_factory=SendConfig)
    validation: ValidationConfig = Field(default_factory=ValidationConfig)
    local_import: LocalImportConfig = Field(default_factory=LocalImportConfig)
    http_import: HttpImportConfig = Field(default_factory=HttpImportConfig)
    crtdl_preprocessing: CrtdlPreprocessingConfig = Field(default_factory=CrtdlPreprocessingConfig)
