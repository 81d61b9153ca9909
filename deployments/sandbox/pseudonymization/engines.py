"""Rule files that were read before: a client sends the same one with every request."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from deployments.sandbox.pseudonymization.deidentify import Engine
from deployments.sandbox.pseudonymization.rulefile import read_rule_file

_KEPT = 8


class Engines:
    """The service's own rules, and the last few that came with requests. For one thread."""

    def __init__(self, own: bytes) -> None:
        """Read the service's own rule file. Raises ``RuleFileError``."""
        self._own = Engine(read_rule_file(own))
        self._recent: OrderedDict[bytes, Engine] = OrderedDict()

    def for_config(self, config: bytes | None) -> Engine:
        """The rules of a request; the service's own without any. Raises ``RuleFileError``."""
        if config is None:
            return self._own
        digest = hashlib.sha256(config).digest()
        engine = self._recent.get(digest)
        if engine is None:
            engine = Engine(read_rule_file(config))
            if not engine.is_lasting:
                return engine
            self._recent[digest] = engine
            if len(self._recent) > _KEPT:
                self._recent.popitem(last=False)
        self._recent.move_to_end(digest)
        return engine
