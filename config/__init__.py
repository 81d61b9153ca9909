"""The configuration of a pipeline: one YAML file, overridden by ``APP_*`` variables and command-line flags.

``load_config`` gives a checked, frozen ``PipelineConfig`` or raises ``ConfigError`` with every finding.
"""

from config.auth import AuthConfig
from config.enrichments import enrichment_rules
from config.findings import ConfigError, Finding
from config.keys import KeyInfo, describe_keys
from config.loader import LoadedConfig, load_config
from config.model import (
    CompressionConfig,
    PipelineConfig,
    RetryConfig,
    TlsConfig,
)
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
from config.steps import STEPS, Role, StepEntry, has_role

__all__ = [
    "STEPS",
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
    "Role",
    "SendMode",
    "StepEntry",
    "TlsConfig",
    "describe_keys",
    "enrichment_rules",
    "has_role",
    "load_config",
]
