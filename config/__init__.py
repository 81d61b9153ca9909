"""The configuration of a pipeline: one YAML file, overridden by ``APP_*`` variables and command-line flags.

``load_config`` gives a checked, frozen ``PipelineConfig`` or raises ``ConfigError`` with every finding.
"""

from config.auth import AuthConfig
from config.enrichments import enrichment_rules
from config.findings import ConfigError, Finding
from config.keys import KeyInfo, describe_keys
from config.loaded import LoadedConfig
from config.loader import load_config
from config.model import (
    CRTDL_STEPS,
    IMPORT_STEPS,
    CompressionConfig,
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
    OutputFormat,
    ResidualIdentifiers,
    SendMode,
)

__all__ = [
    "CRTDL_STEPS",
    "IMPORT_STEPS",
    "AttributeToAdd",
    "AuthConfig",
    "CompressionConfig",
    "ConfigError",
    "CreateGroup",
    "CrtdlPreprocessingConfig",
    "EnrichmentRule",
    "ExtractorConfig",
    "Finding",
    "FlatteningConfig",
    "KeyInfo",
    "LoadedConfig",
    "OutputFormat",
    "PipelineConfig",
    "ResidualIdentifiers",
    "RetryConfig",
    "SendMode",
    "StepName",
    "TlsConfig",
    "describe_keys",
    "enrichment_rules",
    "json_schema",
    "load_config",
]
