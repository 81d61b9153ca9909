"""A lie of a service: its answer, and the required result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.peers.server import Reply


@dataclass(frozen=True)
class HonestAnswer:
    """Input of a lie: the sent body, its honest answer, and the answers to the requests before."""

    sent: dict[str, Any]
    answer: dict[str, Any]
    before: list[dict[str, Any]]

    @property
    def text(self) -> str:
        return json.dumps(self.answer, separators=(",", ":"))

    @property
    def entries(self) -> list[Any]:
        return list(self.answer["entry"])


@dataclass(frozen=True)
class Lie:
    """``tell`` makes the lie of what was asked: a text, or something that becomes JSON. ``reference`` is that of the
    error it ends in; ``None`` when it cannot be noticed, for the reason ``because``."""

    tell: Callable[[Any], Any]
    reference: str | None
    because: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False

    def reply(self, said: Any) -> Reply:
        """Return the answer with the lie."""
        body = (
            said if isinstance(said, bytes) else said.encode() if isinstance(said, str) else json.dumps(said).encode()
        )
        return Reply(self.status, body, self.headers, length=len(body) + 10 if self.cut else None, cut=self.cut or None)
