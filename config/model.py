"""The root of the configuration, and the pipeline, retry, TLS and compression blocks of document 1."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from config.fields import (
    Boolean,
    Choices,
    ConfigBlock,
    DurationOrZero,
    FilePath,
    Integer,
    KeyKind,
    nearest,
    one_of,
    problem,
    read_text,
)
from config.report import ReportConfig
from config.services import ServicesConfig
from config.steps import STEPS

PLACEHOLDER_STEPS = ("csv_conversion", "parquet_conversion")
"""Named by an earlier shape of the configuration, never steps of this one."""


class CompressionLevel(StrEnum):
    """Compression level of output files."""

    FASTEST = "fastest"
    DEFAULT = "default"
    BETTER = "better"
    BEST = "best"


def read_step(value: Any) -> str:
    """Return the name of a step. Raises a finding unless it is written as in the catalogue."""
    text = read_text(value)
    if text in PLACEHOLDER_STEPS:
        raise problem(
            "step-replaced", f"names {text}, a step of an earlier version", "use flattening, which writes CSV"
        )
    if text not in STEPS:
        near = nearest(text, list(STEPS))
        hint = f"did you mean {near}?" if near else f"the steps are {', '.join(STEPS)}"
        raise problem("unknown-step", "is not the name of a step", hint)
    return text


Step = Annotated[str, KeyKind.CHOICE, Choices(tuple(STEPS)), BeforeValidator(read_step)]
Level = Annotated[CompressionLevel, KeyKind.CHOICE, BeforeValidator(one_of(CompressionLevel))]


class PipelineBlock(ConfigBlock):
    """``pipeline``: the steps of a job."""

    enabled_steps: Annotated[tuple[Step, ...], KeyKind.LIST] = Field(
        (),
        examples=[("extractor", "pseudonymizer", "wait", "send")],
        description="The steps, in order: exactly one import step first. Required",
    )

    @property
    def requires_crtdl(self) -> bool:
        """Return whether a run of these steps needs a CRTDL (document 1, step rule 3)."""
        return any(STEPS[step].needs_crtdl for step in self.enabled_steps)


class RetryConfig(ConfigBlock):
    """``retry``: retries of failed requests: wait = min(initial * 2^attempt, max)."""

    max_attempts: Integer = Field(5, ge=1, le=10, description="Attempts in all, the first one included")
    initial_backoff_ms: Integer = Field(1000, ge=0, description="Wait before the second attempt (milliseconds)")
    max_backoff_ms: Integer = Field(30000, ge=0, description="Longest wait between attempts (milliseconds)")


class TlsConfig(ConfigBlock):
    """``tls``: TLS settings of all outgoing connections."""

    ca_cert_path: FilePath | None = Field(
        None,
        examples=["${CA_BUNDLE}"],
        description="PEM bundle of additional CA or server certificates. The system's CAs stay trusted",
    )
    insecure_skip_verify: Boolean = Field(
        False, description="Skip TLS verification entirely. For development and testing only"
    )


class CompressionConfig(ConfigBlock):
    """``compression``: zstd compression of the NDJSON files that a job writes."""

    enabled: Boolean = Field(
        True, description="Write NDJSON files compressed with zstd (`.ndjson.zst`). Both forms are always read"
    )
    level: Level = Field(CompressionLevel.DEFAULT, description="`fastest`, `default`, `better` or `best`")


class LimitsConfig(ConfigBlock):
    """``limits``: limits on what a job reads."""

    max_resource_mb: Integer = Field(
        64,
        ge=1,
        le=1024,
        description="Largest resource (MiB). A line may be longer if it is a Bundle, whose entries are read in parts. "
        "A step holds up to twice as much in memory",
    )

    max_line_mb: Integer = Field(512, ge=1, le=4096, description="Largest line of an NDJSON file (MiB)")

    @property
    def largest_resource(self) -> int:
        """Return the largest resource in bytes."""
        return self.max_resource_mb << 20


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
    server_linger: DurationOrZero | None = Field(
        None,
        examples=["PT1M"],
        description="How long the Prefect server of the jobs directory stays after the last command, for the next one; "
        "0 means not at all. Default: PT1M where the command's output is a terminal, else 0",
    )
