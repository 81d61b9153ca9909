"""The methods of rules, one module per family."""

from __future__ import annotations

from deployments.sandbox.pseudonymization.methods.cryptohash import CryptoHash
from deployments.sandbox.pseudonymization.methods.dates import Calendar
from deployments.sandbox.pseudonymization.methods.dateshift import DateShift
from deployments.sandbox.pseudonymization.methods.generalize import Generalize
from deployments.sandbox.pseudonymization.methods.keys import Keys
from deployments.sandbox.pseudonymization.methods.method import Keep, Method, Remove
from deployments.sandbox.pseudonymization.methods.pseudonymize import Pseudonymize
from deployments.sandbox.pseudonymization.methods.redact import Redact
from deployments.sandbox.pseudonymization.methods.substitute import Substitute
from deployments.sandbox.pseudonymization.rulefile import MethodName, Parameters, Rule


def method_of(rule: Rule, parameters: Parameters, keys: Keys, calendar: Calendar) -> Method:
    """The method of a rule with its settings. Raises ``RuleFileError`` for settings it cannot use."""
    match rule.method:
        case MethodName.REDACT:
            return Redact(parameters, calendar)
        case MethodName.KEEP:
            return Keep()
        case MethodName.REMOVE:
            return Remove()
        case MethodName.CRYPTO_HASH:
            return CryptoHash(rule, keys.crypto_hash)
        case MethodName.DATE_SHIFT:
            return DateShift(parameters, keys.date_shift, calendar)
        case MethodName.SUBSTITUTE:
            return Substitute(rule)
        case MethodName.GENERALIZE:
            return Generalize(rule)
        case MethodName.PSEUDONYMIZE:
            return Pseudonymize(rule)
