"""The enrichment rules that apply: inline ones, or those of the external JSON file (document 1)."""

from __future__ import annotations

from config.services import CrtdlPreprocessingConfig, EnrichmentRule

KEY = "services.crtdl_preprocessing.enrichments_path"


def enrichment_rules(config: CrtdlPreprocessingConfig) -> tuple[EnrichmentRule, ...]:
    """The rules that apply: none when preprocessing is off, else those of the file or the inline ones.

    Raises ``ConfigError`` when the file cannot be used.
    """
    if not config.enabled:
        return ()
    if config.enrichments_path is not None:
        # Few runs have such a file, and its models would slow every start of the program down.
        from config.enrichment_file import load_enrichment_file

        return load_enrichment_file(config.enrichments_path)
    return config.enrichments or ()
