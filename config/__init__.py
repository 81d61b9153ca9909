"""The configuration of a pipeline: one YAML file, overridden by ``APP_*`` variables and command-line flags.

``load_config`` gives a checked, frozen ``PipelineConfig`` or raises ``ConfigError`` with every finding.
"""

from config.auth import AuthConfig
from config.duration import DurationError, format_duration, parse_duration
from config.enrichments import enrichment_rules
from config.findings import ConfigError, Finding
from config.keys import KeyInfo, describe_keys
from config.loaded import Effective, LoadedConfig
from config.loader import load_config
from config.model import (
    CRTDL_STEPS,
    IMPORT_STEPS,
    CompressionConfig,
    CompressionLevel,
    PipelineBlock,
    PipelineConfig,
    RetryConfig,
    StepName,
    TlsConfig,
)
from config.schema import json_schema
from config.services import (
    AttributeToAdd,
    CreateGroup,
    CrtdlPreprocessingConfig,
    EnrichmentRule,
    ExtractorConfig,
    FlatteningConfig,
    HttpImportConfig,
    LocalImportConfig,
    OutputFormat,
    PseudonymizerConfig,
    ResidualIdentifiers,
    S3Config,
    SendConfig,
    SendMode,
    ServicesConfig,
    TransferConfig,
    ValidationConfig,
)

__all__ = [
    "CRTDL_STEPS",
    "IMPORT_STEPS",
    "AttributeToAdd",
    "AuthConfig",
    "CompressionConfig",
    "CompressionLevel",
    "ConfigError",
    "CreateGroup",
    "CrtdlPreprocessingConfig",
    "DurationError",
    "Effective",
    "EnrichmentRule",
    "ExtractorConfig",
    "Finding",
    "FlatteningConfig",
    "HttpImportConfig",
    "KeyInfo",
    "LoadedConfig",
    "LocalImportConfig",
    "OutputFormat",
    "PipelineBlock",
    "PipelineConfig",
    "PseudonymizerConfig",
    "ResidualIdentifiers",
    "RetryConfig",
    "S3Config",
    "SendConfig",
    "SendMode",
    "ServicesConfig",
    "StepName",
    "TlsConfig",
    "TransferConfig",
    "ValidationConfig",
    "describe_keys",
    "enrichment_rules",
    "format_duration",
    "json_schema",
    "load_config",
    "parse_duration",
]
