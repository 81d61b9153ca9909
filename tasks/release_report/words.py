"""The words of the page, the artifact and the form, in the report's language: ``words/<language>.json``.

The document has names of texts, and these files have the texts. A name without a text is shown as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from tasks.release_report.document import ReleaseReport, ReportFinding, Value
from tasks.release_report.numbers import Count
from tasks.shared.markdown import visible
from tasks.shared.units import human_bytes

_PLACE: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class SentencePiece:
    """A part of a sentence; ``data``: it is a path, a host or the name of a file."""

    text: str
    data: bool = False


class Words:
    """The words of ``language``, for a report in which numbers below ``k`` are small."""

    def __init__(self, language: str, k: int = 0) -> None:
        self.language = language
        self.k = k
        self._all = _vocabulary(language)

    @classmethod
    def of(cls, report: ReleaseReport) -> Words:
        """Return the words of a report."""
        return cls(report.language, report.k)

    def __call__(self, name: str, **values: object) -> str:
        """Return the text of a name with ``values`` filled in. Of "one|many", ``n`` selects one."""
        found = self._all.get(name, name)
        if "n" in values and "|" in found:
            one, _, many = found.partition("|")
            found = one if values["n"] == 1 else many
        known: dict[str, object] = {"k": self.k, "below": self.k - 1} | values
        texts = {key: self.number(value) if isinstance(value, int) else str(value) for key, value in known.items()}
        return _PLACE.sub(lambda place: texts.get(place[1], place[0]), found)

    def number(self, value: int) -> str:
        """Format a number."""
        text = f"{value:,}"
        return text if self.language == "en" else text.replace(",", ".")

    def size(self, size: int) -> str:
        """Format a number of bytes."""
        text = human_bytes(size).replace(" ", "\N{NO-BREAK SPACE}")
        return text if self.language == "en" else text.replace(".", ",")

    def moment(self, moment: str) -> str:
        """Format a moment in ISO 8601, in UTC; any other text is unchanged."""
        try:
            at = datetime.fromisoformat(moment).astimezone(UTC)
        except ValueError:
            return moment
        return f"{at:%d.%m.%Y, %H:%M} UTC" if self.language == "de" else f"{at.day} {at:%B %Y, %H:%M} UTC"

    def count(self, count: Count, unit: str = "") -> str:
        """Format a number for a sentence, or with the ``unit`` "count" for a column of patients."""
        lines = "" if count.lines is None else self("n_lines", n=count.lines)
        number = "" if count.number is None else count.number
        unit = unit if unit and count.unit == "patients" else count.unit
        return self(f"{unit}_{count.word}", number=number, lines=lines)

    def value(self, value: Value, name: str = "") -> str:
        """Format a cell; ``name`` is its column or fact, which tells bytes from other numbers."""
        match value:
            case Count():
                return self.count(value, "count")
            case None:
                return "–"
            case int():
                return self.size(value) if name == "bytes" else self.number(value)
        if value.startswith("@"):
            return ", ".join(self(one.removeprefix("@")) for one in (value.split(" @") if " @" in value else [value]))
        return visible(value)

    def finding(self, finding: ReportFinding) -> list[SentencePiece]:
        """Return the sentence of a finding."""
        values = {name: [SentencePiece(self.value(value))] for name, value in finding.values.items()}
        values["about"] = [SentencePiece(visible(finding.about), data=True)]
        if urls := values.get("urls"):
            values["about"] += [SentencePiece(" ("), SentencePiece(urls[0].text, data=True), SentencePiece(")")]
        values["kind"] = [SentencePiece(self(f"kind-{finding.kind}"))]
        values["k"] = [SentencePiece(self.number(self.k))]
        pieces, end, sentence = list[SentencePiece](), 0, self._of_finding(finding.code)[0]
        for place in _PLACE.finditer(sentence):
            pieces += [SentencePiece(sentence[end : place.start()]), *values.get(place[1], [SentencePiece(place[0])])]
            end = place.end()
        return [piece for piece in (*pieces, SentencePiece(sentence[end:])) if piece.text]

    def advice(self, code: str) -> str:
        """Return what to do about a finding; blank without advice."""
        return self._of_finding(code)[1]

    def many(self, code: str, n: int) -> str:
        """Return the sentence for ``n`` findings of a kind that are listed after it; blank without one."""
        return _PLACE.sub(self.number(n), self._of_finding(code)[2])

    def affected(self, finding: ReportFinding) -> str:
        """Return how many patients or lines a finding affects; blank if this is unknown."""
        return self.count(finding.affects) if finding.affects is not None else ""

    def _of_finding(self, code: str) -> Sequence[str]:
        return self._all["findings"].get(code, [code, "", ""])  # type: ignore[no-any-return]


@cache
def _vocabulary(language: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parent / "words" / f"{language}.json").read_bytes())
    return found
