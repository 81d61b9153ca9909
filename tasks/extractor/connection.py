"""From the configuration to a client of its extraction server (document 1, services.extractor)."""

from __future__ import annotations

from config import PipelineConfig
from tasks.extractor.client import SERVICE, ExtractionClient
from tasks.shared.errors import InputError
from tasks.shared.http.client import ServiceClient
from tasks.shared.step import StepContext


def service_client(config: PipelineConfig, context: StepContext | None = None) -> ServiceClient:
    """The HTTP client for ``services.extractor``, which must have a ``base_url``."""
    extractor = config.services.extractor
    return ServiceClient(
        SERVICE,
        tls=config.tls,
        retry=config.retry,
        auth=extractor.auth,
        credentials_origin=base_url_of(config),
        timeout=extractor.request_timeout.total_seconds(),
        stop=context.stop if context else None,
        stats=context.stats if context else None,
        max_connections=extractor.max_concurrent_downloads + 2,
    )


def extraction_client(config: PipelineConfig, http: ServiceClient) -> ExtractionClient:
    """The client of the configured server."""
    extractor = config.services.extractor
    return ExtractionClient(
        http,
        base_url_of(config),
        timeout=extractor.request_timeout.total_seconds(),
        preview_timeout=max(extractor.request_timeout, extractor.extraction_timeout).total_seconds(),
    )


def base_url_of(config: PipelineConfig) -> str:
    """The configured ``base_url``. Raises ``InputError`` (``extractor-url``) when there is none."""
    base_url = config.services.extractor.base_url
    if base_url is None:
        raise InputError(
            "extractor-url",
            "no extraction server is configured",
            context="services.extractor.base_url",
            hint="set it to the server's URL, without /fhir",
        )
    return base_url
