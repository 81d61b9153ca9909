"""The keys of hashing and date shifting: given, derived, or made up."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from deployments.sandbox.pseudonymization.rulefile import MethodName, RuleFile

_SERVER_KEY = b"sluice sandbox: the server's key for keyDerivationContext, no secret"


@dataclass(frozen=True)
class Keys:
    """Keys for one set of rules."""

    crypto_hash: str = field(repr=False)
    date_shift: str = field(repr=False)
    is_lasting: bool = True
    """Whether another request with the same rules gets the same keys."""


def keys_of(rules: RuleFile) -> Keys:
    """The keys of a rule file.

    *Quirk of the deployed service, kept and sharpened:* where the file gives none, one is made up; here for each
    request, so that a client that lives on it fails soon.
    """
    given = rules.parameters
    crypto_hash = given.crypto_hash_key or (
        _derived(given.key_derivation_context) if given.key_derivation_context else None
    )
    date_shift = given.date_shift_key
    if given.date_shift_fixed_offset_in_days is not None:
        date_shift = date_shift or ""
    used = {rule.method for rule in rules.fhir_path_rules}
    lasting = (crypto_hash is not None or MethodName.CRYPTO_HASH not in used) and (
        date_shift is not None or MethodName.DATE_SHIFT not in used
    )
    return Keys(
        secrets.token_hex(32) if crypto_hash is None else crypto_hash,
        secrets.token_hex(32) if date_shift is None else date_shift,
        lasting,
    )


def _derived(context: str) -> str:
    """HKDF-SHA256 (RFC 5869) of the server's key, one block, in hexadecimal."""
    extracted = hmac.digest(b"\0" * 32, _SERVER_KEY, hashlib.sha256)
    return hmac.digest(extracted, context.encode() + b"\x01", hashlib.sha256).hex()
