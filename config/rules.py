"""Rules about several keys: steps, required keys, auth, the enrichment file, insecure settings.

Each rule yields findings. ``check`` needs no valid models, so its findings are reported together with theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from operator import attrgetter
from typing import Any
from urllib.parse import urlsplit

from config.deprecated import BASIC, OAUTH2
from config.enrichments import enrichment_rules
from config.findings import ConfigError, Finding
from config.models import PipelineConfig, variable
from config.services import SendMode
from config.steps import IMPORTS, IN_PARTS, MAY_REPEAT, STEPS

_STEPS = "pipeline.enabled_steps"

_REQUIRED = {
    "extractor": ("base_url",),
    "pseudonymizer": ("url",),
    "flattening": ("service_url", "lookup_path"),
    "send": ("send_as",),
    "validation": ("url",),
}
_REQUIRED_BY_MODE = {
    SendMode.DIRECT_RESOURCE_LOAD: ("url",),
    SendMode.TRANSFER_LOAD: ("url", "transfer.project_identifier", "transfer.organization_identifier"),
    SendMode.S3_UPLOAD: ("s3.bucket", "s3.region", "s3.access_key_id", "s3.secret_access_key"),
}
_ADDRESSES = {"extractor": "base_url", "pseudonymizer": "url", "send": "url"}
"""Step → key of the URL that gets the credentials of its ``auth`` block."""


def check(given: Collection[str], values: Mapping[str, Any], steps: Sequence[str] | None) -> Iterator[Finding]:
    """Yield the errors of combinations of keys.

    ``given`` are the keys that are set, ``values`` the values without missing variables. ``steps`` is ``None`` if the
    list of steps cannot be read, which is a finding of its own.
    """
    if steps is not None:
        yield from _step_order(steps)
        yield from _required(given, values, steps)
    for step in _ADDRESSES:
        yield from _auth(f"services.{step}.auth", given, values)
    preprocessing = "services.crtdl_preprocessing"
    if {f"{preprocessing}.enrichments", f"{preprocessing}.enrichments_path"} <= set(given):
        yield Finding("enrichments-both", preprocessing, "enrichments and enrichments_path are both set", "keep one")


def _step_order(steps: Sequence[str]) -> Iterator[Finding]:
    if not steps:
        yield Finding("steps-missing", _STEPS, "no steps are enabled", "write it like [local_import, send]")
        return
    hint = f"begin with exactly one of {', '.join(IMPORTS)}"
    if steps[0] == "wait":
        yield Finding("steps-wait-first", f"{_STEPS}[0]", "a wait step cannot be first", hint)
    elif steps[0] in STEPS and steps[0] not in IMPORTS:
        yield Finding("steps-import-first", f"{_STEPS}[0]", "the first step is not an import step", hint)
    for index, step in enumerate(steps[1:], start=1):
        key, before = f"{_STEPS}[{index}]", steps[:index]
        if step in IMPORTS:
            message = "an import step must come first, and there is exactly one"
            yield Finding("steps-two-imports", key, message, "keep exactly one, as the first step")
        elif step == "wait" == steps[index - 1]:
            yield Finding("steps-wait-twice", key, "a wait step cannot follow another wait step", "remove one of them")
        elif step in before and step in STEPS and step not in MAY_REPEAT:
            hint = f"only {' and '.join(MAY_REPEAT)} may repeat"
            yield Finding("steps-repeated", key, f"{step} is listed twice", hint)


def _required(given: Collection[str], values: Mapping[str, Any], steps: Sequence[str]) -> Iterator[Finding]:
    needed = {f"services.{step}.{name}": f"the {step} step" for step in steps for name in _REQUIRED.get(step, ())}
    mode = values.get("services.send.send_as")
    if "send" in steps and mode in _REQUIRED_BY_MODE:
        needed |= {f"services.send.{name}": f"send_as {mode}" for name in _REQUIRED_BY_MODE[mode]}
    for key, what in needed.items():
        if key not in given:
            hint = f"set it in the file, or set {variable(key)}"
            yield Finding("required-key", key, f"{key.rpartition('.')[2]} is required by {what}", hint)


def _auth(block: str, given: Collection[str], values: Mapping[str, Any]) -> Iterator[Finding]:
    basic = [name for name in BASIC if f"{block}.{name}" in given]
    oauth2 = [name for name in OAUTH2 if f"{block}.{name}" in given]
    if basic and oauth2:
        message = f"Basic Auth ({', '.join(basic)}) and OAuth 2.0 ({', '.join(oauth2)}) are both set"
        yield Finding("auth-both-schemes", block, message, "both fill the Authorization header: keep one of them")
    elif there := basic or oauth2:
        scheme, names = ("Basic Auth", BASIC) if basic else ("OAuth 2.0", OAUTH2)
        if missing := [name for name in names if name not in there]:
            hint = f"add to the block, or set {', '.join(variable(f'{block}.{name}') for name in missing)}"
            yield Finding("auth-incomplete", block, f"{scheme} lacks {', '.join(missing)}", hint)
    if (basic or oauth2) and str(values.get(f"{block}.api_key_header")).lower() == "authorization":
        message = "api_key_header is Authorization, which Basic Auth or OAuth 2.0 already fills"
        hint = "use another header, or remove the other credentials"
        yield Finding("auth-authorization-twice", block, message, hint)


def check_files(config: PipelineConfig) -> Iterator[Finding]:
    """Yield the errors of the enrichment file. The steps check the other files."""
    if config.pipeline.requires_crtdl:
        try:
            enrichment_rules(config.services.crtdl_preprocessing)
        except ConfigError as error:
            yield from error.findings


def check_parts(config: PipelineConfig) -> Iterator[Finding]:
    """Yield the errors of ``pipeline.parts``."""
    parts = config.pipeline.parts
    for step in IN_PARTS if parts > 1 else ():
        requests = attrgetter(step)(config.services).max_concurrent_requests
        if step in config.pipeline.enabled_steps and parts > requests:
            message = f"max_concurrent_requests is {requests}, too few for {parts} parts"
            hint = f"set it to {parts} or more, or pipeline.parts lower"
            yield Finding("too-many-parts", f"services.{step}.max_concurrent_requests", message, hint)
    if parts > 1 and find_spec("prefect_dask") is None:
        hint = "install Sluice with its extra: pip install -c constraints.txt '.[dask]'"
        yield Finding("extra-missing", "pipeline.parts", "parts needs prefect-dask, which is not installed", hint)


def warnings(config: PipelineConfig) -> Iterator[Finding]:
    """Yield warnings about insecure settings."""
    if config.tls.insecure_skip_verify:
        message = "TLS certificates are not verified: anyone on the network can read and change the data"
        hint = "for development and testing only; name the server's CA in tls.ca_cert_path instead"
        yield Finding("tls-not-verified", "tls.insecure_skip_verify", message, hint, "warning")
    for step, name in _ADDRESSES.items():
        service = attrgetter(step)(config.services)
        used = step in config.pipeline.enabled_steps and getattr(service, "send_as", None) is not SendMode.S3_UPLOAD
        if used and (service.auth.scheme != "none" or service.auth.api_key) and _is_exposed(getattr(service, name)):
            message = "credentials are sent over plain HTTP to another machine"
            yield Finding("credentials-unencrypted", f"services.{step}.{name}", message, "use https://", "warning")


def _is_exposed(url: str | None) -> bool:
    """Return whether a URL is plain HTTP to another machine."""
    parts = urlsplit(url or "")
    return parts.scheme == "http" and parts.hostname not in {"localhost", "127.0.0.1", "::1"}
