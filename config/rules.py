"""The rules that join several keys: steps, required keys, auth, polling, enrichments, things that are insecure.

Each rule is a function of ``RuleFacts`` that yields findings. A rule judges only what is known: where one of its inputs
has a finding of its own, it holds back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from config.auth import BASIC, OAUTH2, AuthConfig
from config.duration import format_duration
from config.enrichments import KEY as ENRICHMENTS_PATH
from config.enrichments import enrichment_rules
from config.findings import ConfigError, Finding, about
from config.keys import env_name
from config.model import PipelineConfig
from config.services import SendMode
from config.steps import STEPS, Role, StepEntry, has_role


@dataclass(frozen=True)
class RuleFacts:
    """Facts about a configuration that the rules check.

    ``config`` holds defaults where a value is missing or unusable. ``present`` are the keys that some source gives,
    usable or not; ``unknown`` those whose value cannot be judged. ``steps`` is the step list, ``None`` for an
    entry that is no step, or ``None`` altogether when there is no usable list.
    """

    config: PipelineConfig
    present: frozenset[str]
    unknown: frozenset[str]
    steps: tuple[str | None, ...] | None

    def enabled(self) -> Iterator[StepEntry]:
        """Yield the steps of the list, in the order of the catalogue."""
        return (step for name, step in STEPS.items() if name in (self.steps or ()))

    @property
    def sends_as(self) -> SendMode | None:
        """Return how data are sent; ``None`` where no step sends them or the key is not set."""
        return self.config.services.send.send_as if any(step.role is Role.SEND for step in self.enabled()) else None

    def has_usable_values(self, *keys: str) -> bool:
        """Return whether every one of the keys has a usable value or is not set."""
        return self.unknown.isdisjoint(keys)


Rule = Callable[[RuleFacts], Iterator[Finding]]


def check(facts: RuleFacts) -> Iterator[Finding]:
    """Yield every finding of every rule."""
    for rule in RULES:
        yield from rule(facts)


# --- steps (document 1, pipeline; 4-product §4) ---------------------------------------------------------------

_STEPS = "pipeline.enabled_steps"


def _steps(facts: RuleFacts) -> Iterator[Finding]:
    if not facts.steps:
        if facts.steps is not None or _STEPS not in facts.unknown:
            yield Finding("steps-missing", _STEPS, "no steps are enabled", "write it like [local_import, send]")
        return
    yield from _import_first(facts.steps)
    yield from _waits(facts.steps)
    yield from _repeated(facts.steps)
    yield from _after_tables(facts.steps)


def _imports(step: str | None) -> bool:
    return has_role(step, Role.EXTRACT, Role.IMPORT)


def _import_first(steps: tuple[str | None, ...]) -> Iterator[Finding]:
    choices = ", ".join(name for name in STEPS if _imports(name))
    imports = [index for index, step in enumerate(steps) if _imports(step)]
    for index in imports[1:]:
        yield Finding(
            "steps-two-imports",
            f"{_STEPS}[{index}]",
            f"{steps[index]} is a second import step",
            "keep exactly one, as the first step",
        )
    first = next((index for index, step in enumerate(steps) if not has_role(step, Role.WAIT)), None)
    if first is None or (steps[first] is not None and not _imports(steps[first])):
        hint = f"begin with exactly one of {choices}"
        yield Finding("steps-import-first", f"{_STEPS}[0]", "the first step is not an import step", hint)


def _waits(steps: tuple[str | None, ...]) -> Iterator[Finding]:
    for index, step in enumerate(steps):
        if not has_role(step, Role.WAIT):
            continue
        if index == 0:
            hint = "put it after the step whose output is to be inspected"
            yield Finding("steps-wait-first", f"{_STEPS}[0]", "a wait step cannot be first", hint)
        elif has_role(steps[index - 1], Role.WAIT):
            message = "a wait step cannot follow another wait step"
            yield Finding("steps-wait-twice", f"{_STEPS}[{index}]", message, "remove one of them")


def _repeated(steps: tuple[str | None, ...]) -> Iterator[Finding]:
    repeatable = " and ".join(name for name, step in STEPS.items() if step.repeats)
    for index, name in enumerate(steps):
        if name is None or name not in steps[:index] or STEPS[name].repeats or STEPS[name].imports:
            continue  # a second import has a finding of its own
        message = f"{name} is listed twice"
        yield Finding("steps-repeated", f"{_STEPS}[{index}]", message, f"only {repeatable} may repeat")


def _after_tables(steps: tuple[str | None, ...]) -> Iterator[Finding]:
    """Warn of steps that cannot read tables: they fail unless a wait before them holds corrected FHIR files."""
    tables = None
    for index, name in enumerate(steps):
        if tables is not None and name is not None and not STEPS[name].reads_tables:
            message = f"{name} comes after {tables}, whose tables it cannot read"
            hint = f"put it before {tables}; else it needs a wait in between, with FHIR data in its directory"
            yield Finding("steps-after-flattening", f"{_STEPS}[{index}]", message, hint, level="warning")
        tables = name if has_role(name, Role.FLATTEN) else tables


def _tables_before_direct_load(facts: RuleFacts) -> Iterator[Finding]:
    """Warn of a wait between ``flattening`` and a direct load: the reviewer may take the tables for the sent data."""
    if facts.sends_as is not SendMode.DIRECT_RESOURCE_LOAD:
        return
    roles = [STEPS[step].role for step in facts.steps or () if step is not None]
    until_send = roles[: roles.index(Role.SEND)]
    if Role.FLATTEN in until_send and Role.WAIT in until_send[until_send.index(Role.FLATTEN) :]:
        message = "the tables of flattening are not sent: direct_resource_load sends its NDJSON input"
        hint = "use s3_upload or transfer_load to send tables"
        yield Finding("tables-not-sent", _STEPS, message, hint, level="warning")


# --- keys that an enabled step needs --------------------------------------------------------------------------

_MODE = "services.send.send_as"
_S3 = tuple(f"services.send.s3.{name}" for name in ("bucket", "region", "access_key_id", "secret_access_key"))
_TRANSFER = tuple(f"services.send.transfer.{name}_identifier" for name in ("project", "organization"))
_REQUIRED_BY_MODE: dict[SendMode, tuple[str, ...]] = {
    SendMode.DIRECT_RESOURCE_LOAD: ("services.send.url",),
    SendMode.TRANSFER_LOAD: ("services.send.url", *_TRANSFER),
    SendMode.S3_UPLOAD: _S3,
}


def required(step: str, mode: SendMode) -> tuple[str, ...]:
    """Return the keys that a step needs; ``mode`` counts for the step that sends."""
    return (*STEPS[step].keys("requires"), *(_REQUIRED_BY_MODE[mode] if has_role(step, Role.SEND) else ()))


def _required(facts: RuleFacts) -> Iterator[Finding]:
    for step in facts.enabled():
        yield from _missing(facts, step.keys("requires"), f"the {step.name} step")
    if facts.sends_as is not None:
        yield from _missing(facts, _REQUIRED_BY_MODE[facts.sends_as], f"send_as {facts.sends_as}")


def _missing(facts: RuleFacts, keys: tuple[str, ...], needed_by: str) -> Iterator[Finding]:
    for key in keys:
        if key not in facts.present and facts.has_usable_values(key):
            hint = (_implied_mode(facts) if key == _MODE else "") or f"set it in the file, or set {env_name(key)}"
            yield Finding("required-key", key, about(key, f"is required by {needed_by}"), hint)


def _implied_mode(facts: RuleFacts) -> str:
    """Return a hint that names the mode which the other keys of ``services.send`` belong to, or ``""``."""
    for mode, keys in _REQUIRED_BY_MODE.items():
        given = [key for key in keys if key in facts.present and key != "services.send.url"]
        if given:
            return f"set it to {mode}, the mode that {given[0]} is for"
    return ""


# --- auth blocks (document 1, "Authentication") ---------------------------------------------------------------

_SIGNING = tuple(step for step in STEPS.values() if step.address is not None)
"""The steps whose service has an auth block."""


def _auth(facts: RuleFacts) -> Iterator[Finding]:
    for step in _SIGNING:
        block = f"{step.block}.auth"
        basic = [name for name in BASIC if f"{block}.{name}" in facts.present]
        oauth2 = [name for name in OAUTH2 if f"{block}.{name}" in facts.present]
        if basic and oauth2:
            yield Finding(
                "auth-both-schemes",
                block,
                f"Basic Auth ({', '.join(basic)}) and OAuth 2.0 ({', '.join(oauth2)}) are both set",
                "both fill the Authorization header: keep one of them",
            )
        else:
            yield from _incomplete(facts, block, "Basic Auth", BASIC, basic)
            yield from _incomplete(facts, block, "OAuth 2.0", OAUTH2, oauth2)
        yield from _authorization_header(facts, step, bool(basic or oauth2))


def _incomplete(
    facts: RuleFacts, block: str, scheme: str, names: tuple[str, ...], given: list[str]
) -> Iterator[Finding]:
    # A key whose variable is not set, in a step that is not enabled, is neither there nor missing.
    missing = [name for name in names if name not in given and f"{block}.{name}" not in facts.unknown]
    if given and missing:
        hint = f"add to the block, or set {', '.join(env_name(f'{block}.{name}') for name in missing)}"
        yield Finding("auth-incomplete", block, f"{scheme} lacks {', '.join(missing)}", hint)


def _authorization_header(facts: RuleFacts, step: StepEntry, other_scheme: bool) -> Iterator[Finding]:
    header, block = _auth_of(facts, step).api_key_header, f"{step.block}.auth"
    if header.lower() == "authorization" and other_scheme and facts.has_usable_values(f"{block}.api_key_header"):
        yield Finding(
            "auth-authorization-twice",
            block,
            "api_key_header is Authorization, which Basic Auth or OAuth 2.0 already fills",
            "use another header, or remove the other credentials",
        )


def _auth_of(facts: RuleFacts, step: StepEntry) -> AuthConfig:
    auth: AuthConfig = getattr(facts.config.services, step.name).auth
    return auth


def _ignored_in_s3(facts: RuleFacts) -> Iterator[Finding]:
    """Document 1, auth rule 7: only Basic, and only for an upstream proxy."""
    if facts.sends_as is not SendMode.S3_UPLOAD:
        return
    for name in ("api_key", *OAUTH2):
        key = f"services.send.auth.{name}"
        if key in facts.present:
            message = f"{name} is ignored in s3_upload, where the auth block is for an upstream proxy (Basic)"
            yield Finding("auth-ignored", key, message, "the store itself uses services.send.s3", level="warning")


# --- values that depend on each other -------------------------------------------------------------------------


def _polling(facts: RuleFacts) -> Iterator[Finding]:
    first, cap = "services.extractor.polling_interval", "services.extractor.max_polling_interval"
    extractor = facts.config.services.extractor
    if facts.has_usable_values(first, cap) and extractor.max_polling_interval < extractor.polling_interval:
        start = format_duration(extractor.polling_interval)
        low = format_duration(extractor.max_polling_interval)
        message = f"max_polling_interval ({low}) is below polling_interval ({start})"
        yield Finding("polling-order", cap, message, f"set it to {start} or more")


def _enrichments(facts: RuleFacts) -> Iterator[Finding]:
    preprocessing = facts.config.services.crtdl_preprocessing
    inline = "services.crtdl_preprocessing.enrichments"
    if {inline, ENRICHMENTS_PATH} <= facts.present:
        message = "enrichments and enrichments_path are both set"
        yield Finding("enrichments-both", "services.crtdl_preprocessing", message, "keep one of them")
    if preprocessing.enrichments_path is not None and any(step.needs_crtdl for step in facts.enabled()):
        try:
            enrichment_rules(preprocessing)
        except ConfigError as error:
            yield from error.findings


# --- security -------------------------------------------------------------------------------------------------


def _tls(facts: RuleFacts) -> Iterator[Finding]:
    tls = facts.config.tls
    if tls.ca_cert_path is not None and not tls.ca_cert_path.is_file():
        message = "ca_cert_path names a file that does not exist"
        hint = "name a PEM bundle; a relative path starts at the working directory"
        yield Finding("file-not-found", "tls.ca_cert_path", message, hint)
    elif tls.ca_cert_path is not None:
        from config.certificates import CertificatesError, read_certificates  # ssl takes its time to import

        try:  # whether a step uses it or not
            read_certificates(tls.ca_cert_path)
        except CertificatesError as error:
            yield Finding("tls-ca-bundle", "tls.ca_cert_path", error.message, error.hint)
    if tls.insecure_skip_verify:
        yield Finding(
            "tls-not-verified",
            "tls.insecure_skip_verify",
            "TLS certificates are not verified: anybody on the way can read and change the data",
            "for development and testing only; name the server's CA in tls.ca_cert_path instead",
            level="warning",
        )


def _credentials_in_the_clear(facts: RuleFacts) -> Iterator[Finding]:
    for step in facts.enabled():
        if (key := step.address) is None:
            continue
        service, auth = getattr(facts.config.services, step.name), _auth_of(facts, step)
        url, sent = getattr(service, key), auth.scheme != "none" or auth.api_key is not None
        if step.role is Role.SEND and service.send_as is SendMode.S3_UPLOAD:
            key, url, sent = "s3.endpoint", service.s3.endpoint, auth.scheme == "basic"
        if sent and url is not None and _plain_http_away(url):
            message = "credentials are sent over plain HTTP to another machine"
            yield Finding("credentials-unencrypted", f"{step.block}.{key}", message, "use https://", level="warning")


def _plain_http_away(url: str) -> bool:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "http" or host == "localhost":
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True


RULES: tuple[Rule, ...] = (
    _steps,
    _tables_before_direct_load,
    _required,
    _auth,
    _ignored_in_s3,
    _polling,
    _enrichments,
    _tls,
    _credentials_in_the_clear,
)
