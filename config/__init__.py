"""The configuration of a pipeline: one YAML file, overridden by ``APP_*`` variables and command-line flags.

``load_config`` gives a checked, frozen ``PipelineConfig`` or raises ``ConfigError`` with every finding.
"""

from config.enrichments import enrichment_rules as enrichment_rules
from config.findings import ConfigError as ConfigError
from config.findings import Finding as Finding
from config.load import LoadedConfig as LoadedConfig
from config.load import load_config as load_config
from config.models import CompressionConfig as CompressionConfig
from config.models import PipelineConfig as PipelineConfig
from config.models import RetryConfig as RetryConfig
from config.models import TlsConfig as TlsConfig
from config.services import AuthConfig as AuthConfig
from config.services import EnrichmentRule as EnrichmentRule
from config.services import ExtractorConfig as ExtractorConfig
from config.services import SendMode as SendMode
from config.steps import STEPS as STEPS
