"""The root of the configuration, every block but ``services``, and the list of all keys."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field
from pydantic.fields import FieldInfo

from config.services import ServicesConfig
from config.steps import NEED_CRTDL, Steps
from config.types import AsList, AtLeastOne, ConfigBlock, FilePath, Integer, Secret, Text


class PipelineBlock(ConfigBlock):
    """The steps of a job."""

    enabled_steps: Steps = Field((), description="The steps, in order: exactly one import step first. Required")
    parts: AtLeastOne = Field(1, description="Groups of files that `pseudonymizer` and `validation` work on at once")
    dask_address: Text | None = Field(None, description="Dask scheduler for the parts. Empty: processes here")

    @property
    def requires_crtdl(self) -> bool:
        """Return whether a run of these steps needs a CRTDL."""
        return any(step in NEED_CRTDL for step in self.enabled_steps)


class RetryConfig(ConfigBlock):
    """Retries of failed requests: wait = min(initial * 2^attempt, max), attempts counted from 0."""

    max_attempts: Integer = Field(5, ge=1, le=10, description="Attempts in total, including the first")
    initial_backoff_ms: Integer = Field(1000, ge=0, description="Wait before the second attempt (milliseconds)")
    max_backoff_ms: Integer = Field(30000, ge=0, description="Longest wait between attempts (milliseconds)")


class TlsConfig(ConfigBlock):
    """TLS of all outgoing connections."""

    ca_cert_path: FilePath | None = Field(None, description="PEM file of additional certificates to trust")
    insecure_skip_verify: bool = Field(False, description="Skip TLS verification. For development and testing only")


class CompressionConfig(ConfigBlock):
    """Compression of the NDJSON files that a job writes."""

    enabled: bool = Field(True, description="Write `.ndjson.zst` (zstd). Both forms are always read")
    level: Literal["fastest", "default", "better", "best"] = Field("default", description="Compression level")


class LimitsConfig(ConfigBlock):
    """Limits on what a job reads."""

    max_line_mb: Integer = Field(512, ge=1, le=4096, description="Largest line of an NDJSON file (MiB)")


QuasiIdentifier = Literal["Patient.birthDate", "Patient.gender", "Patient.address.postalCode"]


class ReportConfig(ConfigBlock):
    """The release report, which a person sees before data leave the site."""

    enabled: bool = Field(True, description="Make the release report before each `wait` and `send`, and at the end")
    k: Integer = Field(5, ge=3, le=20, description="Numbers of patients below this are never shown")
    language: Literal["en", "de"] = Field("en", description="Language of the release report")
    quasi_identifiers: Annotated[tuple[QuasiIdentifier, ...], AsList] = Field(
        get_args(QuasiIdentifier),
        description="Attributes that may tell patients apart; of a birth date, only the year",
    )
    region_prefix: Integer = Field(2, ge=0, le=10, description="Leading characters of a postal code that are a region")
    purpose: Text | None = Field(None, description="Purpose of the data, shown in the report (GDPR Art. 30)")
    legal_basis: Text | None = Field(None, description="Legal basis for sending the data, shown in the report")
    recipient: Text | None = Field(None, description="Recipient of the data, shown in the report")
    retention: Text | None = Field(None, description="How long the recipient keeps the data, shown in the report")
    contact: Text | None = Field(None, description="Whom to ask about the release, shown in the report")
    on_stop: Literal["tell", "fail"] = Field(
        "tell", description="Without a `wait`, on a reason to stop: `tell` sends, `fail` ends the job (exit 5)"
    )


class PipelineConfig(ConfigBlock):
    """A whole configuration. ``config.load_config`` makes one from its sources and checks every rule."""

    services: ServicesConfig = Field(default_factory=ServicesConfig)
    pipeline: PipelineBlock = Field(default_factory=PipelineBlock)
    retry: RetryConfig = Field(default_factory=RetryConfig)
    tls: TlsConfig = Field(default_factory=TlsConfig)
    compression: CompressionConfig = Field(default_factory=CompressionConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    report: ReportConfig = Field(default_factory=ReportConfig)
    jobs_dir: FilePath = Field(Path("jobs"), description="Directory of job state and data files")


@cache
def blocks() -> dict[str, type[ConfigBlock]]:
    """Return every block by its dotted path, in the order of the documentation; the root is the empty path."""
    return dict(_blocks(PipelineConfig, ""))


def _blocks(model: type[ConfigBlock], path: str) -> Iterator[tuple[str, type[ConfigBlock]]]:
    yield path, model
    for name, field in model.model_fields.items():
        if _is_block(field.annotation):
            yield from _blocks(field.annotation, f"{path}.{name}".lstrip("."))  # type: ignore[arg-type]


@cache
def keys() -> dict[str, FieldInfo]:
    """Return every key by its dotted path, in the order of the documentation."""
    return {
        f"{path}.{name}".lstrip("."): field
        for path, model in blocks().items()
        for name, field in model.model_fields.items()
        if not _is_block(field.annotation)
    }


def _is_block(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, ConfigBlock)


def is_secret(key: str) -> bool:
    """Return whether the value of a key must never be shown."""
    return Secret in get_args(keys()[key].annotation)


def variable(key: str) -> str:
    """Return the environment variable of a key."""
    return f"APP_{key.upper().replace('.', '_')}"


def steps_of(key: str) -> tuple[str, ...]:
    """Return the steps a key belongs to; none if every run uses it."""
    top, _, rest = key.partition(".")
    if top != "services":
        return ()
    service = rest.partition(".")[0]
    return NEED_CRTDL if service == "crtdl_preprocessing" else (service,)
