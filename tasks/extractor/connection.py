"""From the configuration to a client of its extraction server (document 1, services.extractor)."""

from __future__ import annotations

from config import PipelineConfig
from tasks.extractor.checks import service
from tasks.extractor.client import ExtractionClient
from tasks.shared.errors import InputError
from tasks.shared.http.client import ServiceClient
from tasks.shared.step import StepContext


def service_client(config: PipelineConfig, context: StepContext | None = None) -> ServiceClient:
    """The HTTP client for ``services.extractor``, which must have a ``base_url``."""
    base_url_of(config)
    extractor = config.services.extractor
    timeout, connections = extractor.request_timeout.total_seconds(), extractor.max_concurrent_downloads + 2
    if context is None:
        return service(config).client(config, timeout=timeout, max_connections=connections)
    return context.client(service(config), timeout=timeout, max_connections=connections)


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
