"""The words of the page and of its short form, in the report's language (document 5, sections 2 and 3).

The document holds names; what a person reads for them stands in ``words/<language>.json``: in the group of what is
named, else in the group ``words``. A name that nobody worded is shown as it is, so that nothing is hidden by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache
from pathlib import Path
from typing import Final, Literal

import msgspec

from tasks.release_report.report.document import Decided, ReleaseReport, ReportFinding, Value
from tasks.release_report.report.numbers import Count
from tasks.shared.units import human_bytes

Group = Literal["page", "sections", "tables", "columns", "facts", "said", "words"]

LANGUAGES: Final = ("en", "de")

_PLACE: Final = re.compile(r"\{(\w+)\}")
_ESCAPED: Final = re.compile(r"\\\{(\w+)\\\}")
_GERMAN_ZONES: Final = {timedelta(hours=1): "MEZ", timedelta(hours=2): "MESZ"}


class FindingWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A finding as a sentence, what to do about it, its short name, and a sentence for many of the kind.

    ``{about}``, ``{k}`` and the names of its values may stand in the first two, ``{n}`` in the last. ``sent`` is the
    sentence once the data have left, where it is another one.
    """

    say: str
    name: str
    do: str = ""
    many: str = ""
    sent: str = ""


class Vocabulary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All words of a language."""

    page: dict[str, str]
    sections: dict[str, str]
    tables: dict[str, str]
    columns: dict[str, str]
    facts: dict[str, str]
    said: dict[str, str]
    words: dict[str, str]
    findings: dict[str, FindingWords]


@dataclass(frozen=True)
class SentencePiece:
    """A part of a sentence; ``data`` says that it is no word of ours: a path, a host, the name of a file."""

    text: str
    data: bool = False


class Words:
    """Words of ``language`` for a report in which numbers below ``k`` are small.

    Once the data are ``sent``, the word ``<name>_sent`` replaces ``<name>`` where there is one.
    """

    def __init__(
        self, language: str, k: int, *, sent: bool = False, space: str = " ", zone: tzinfo | None = None
    ) -> None:
        self.language = language
        self.k = k
        self._sent = sent
        self._space = space
        self._zone = zone
        self._all = vocabulary(language)

    @classmethod
    def of_report(cls, report: ReleaseReport, *, space: str = " ") -> Words:
        """Return the words of a report; ``space`` stands between a number of bytes and its unit.

        Local times are those of the machine that made it: every machine makes the same page of it.
        """
        try:
            zone = datetime.fromisoformat(report.made).tzinfo or UTC
        except ValueError:
            zone = UTC
        return cls(report.language, report.k, sent=report.sent is not None, space=space, zone=zone)

    def __call__(self, name: str, **values: object) -> str:
        """Return a word of the page: "one|many" by ``n``, with ``values`` in the places of these names."""
        found = self._now(self._all.page, name) or name
        if "n" in values and "|" in found:
            one, _, many = found.partition("|")
            found = one if values["n"] == 1 else many
        texts = {key: self.number(value) if isinstance(value, int) else str(value) for key, value in values.items()}
        return _PLACE.sub(lambda place: texts.get(place[1], place[0]), found)

    def of(self, group: Group, name: str) -> str:
        """Return the word for ``name`` in a group, or the name itself without a word."""
        groups: dict[str, str] = getattr(self._all, group)
        known = name.removeprefix("@")
        return self._filled(self._now(groups, known) or self._now(self._all.words, known) or name, {})

    def _now(self, words: dict[str, str], name: str) -> str | None:
        """Return the words for a name, of before or after the data are sent."""
        return words.get(f"{name}_sent", words.get(name)) if self._sent else words.get(name)

    def has_words(self, group: Group, name: str) -> bool:
        """Return whether there are words for a name."""
        return name in getattr(self._all, group) or name in self._all.words

    def number(self, value: float) -> str:
        """Format a number with the signs of the language."""
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"
        return text if self.language == "en" else text.translate(str.maketrans(",.", ".,"))

    def size(self, size: float) -> str:
        """Format a number of bytes in a readable unit."""
        text = human_bytes(size).replace(" ", self._space)
        return text if self.language == "en" else text.replace(".", ",")

    def count(self, count: Count) -> str:
        """Format a number of patients for a cell."""
        number = "" if count.number is None else self.number(count.number)
        return number if count.word == "about" else self(f"count_{count.word}", number=number)

    def patients(self, count: Count) -> str:
        """Format a number of patients for a sentence."""
        number = "" if count.number is None else self.number(count.number)
        return self(f"patients_{count.word}", number=number)

    def value(self, value: Value, name: str = "") -> str:
        """Format the value of a cell. ``name`` is its column or fact, which identifies numbers of bytes."""
        match value:
            case Count():
                return self.count(value)
            case None:
                return "–"
            case bool():
                return self("yes" if value else "no")
            case str():
                return self._named(value) or visible(value)
            case _:
                return self.size(value) if is_bytes(name) else self.number(value)

    def _named(self, value: str) -> str:
        """Return the words or short names of findings for names; empty if one of them is no name."""
        if " @" in value:
            each = [self._named(one) for one in value.split(" ")]
            return ", ".join(each) if all(each) else ""
        name = value[1:] if value.startswith("@") else ""
        if name in self._all.words:
            return self._filled(self._now(self._all.words, name) or "", {})
        return self._all.findings[name].name if name in self._all.findings else ""

    def moment(self, moment: str) -> str:
        """Format a moment in ISO 8601: in UTC, or in German in local time. Any other text is unchanged."""
        try:
            at = datetime.fromisoformat(moment)
        except ValueError:
            return moment
        if self.language == "de":
            at = at.astimezone(self._zone) if at.tzinfo else at
            offset = at.utcoffset() or timedelta()
            return f"{at:%d.%m.%Y, %H:%M} {_GERMAN_ZONES.get(offset) or timezone(offset)}"
        at = at.astimezone(UTC) if at.tzinfo else at
        return f"{at.day} {at:%B %Y, %H:%M} UTC"

    def finding(self, finding: ReportFinding) -> list[SentencePiece]:
        """Return the sentence of a finding. Its ``about`` is appended if the sentence has no place for it."""
        words = self._all.findings.get(finding.code)
        say = (words.sent if self._sent else "") or words.say if words else ""
        pieces = self._pieces(say, finding) if words else [SentencePiece(finding.code, data=True)]
        about = self.value(finding.about)
        if about and (not say or "{about}" not in say):
            pieces += [SentencePiece(": "), SentencePiece(about, data=not finding.about.startswith("@"))]
        return pieces

    def advice(self, finding: ReportFinding) -> list[SentencePiece]:
        """Return what to do about a finding; empty without advice."""
        words = self._all.findings.get(finding.code)
        return self._pieces(words.do, finding) if words and words.do else []

    def decision(self, one: Decided, shown: Callable[[str], str]) -> str:
        """Return what somebody decided, who, when and why, in a line; what a person wrote is put through ``shown``."""
        by = self("decided_by", by=shown(one.by), when=shown(self.moment(one.when)), where=self(f"where_{one.where}"))
        text = f"{self('released' if one.approved else 'rejected')} {by}"
        return text + (f". {self('comment')}: {shown(one.comment)}" if one.comment else "")

    def again(self, line: str) -> str:
        """Translate a reason why a job waits again, recorded in English; an unknown line is unchanged."""
        for name, text in vocabulary("en").page.items():
            pattern = _ESCAPED.sub(r"(?P<\1>.+)", re.escape(text))
            if name.startswith("again_") and (found := re.fullmatch(pattern, line)) is not None:
                return self._filled(self._all.page[name], found.groupdict())
        return line

    def many(self, code: str, n: int) -> str:
        """Return the sentence for ``n`` findings of a kind that are listed after it; empty without one."""
        words = self._all.findings.get(code)
        return self._filled(words.many, {"n": self.number(n)}) if words else ""

    def _pieces(self, sentence: str, finding: ReportFinding) -> list[SentencePiece]:
        about = SentencePiece(self.value(finding.about), data=not finding.about.startswith("@"))
        values = {
            name: SentencePiece(self.value(value, name), data=isinstance(value, str) and not value.startswith("@"))
            for name, value in finding.values.items()
        }
        values |= {"about": about, "k": SentencePiece(self.number(self.k))}
        if finding.patients is not None:
            values["patients"] = SentencePiece(self.patients(finding.patients))
        pieces, end = [], 0
        for place in _PLACE.finditer(sentence):
            pieces += [SentencePiece(sentence[end : place.start()]), values.get(place[1], SentencePiece(place[0]))]
            end = place.end()
        return [piece for piece in (*pieces, SentencePiece(sentence[end:])) if piece.text]

    def _filled(self, text: str, values: dict[str, str]) -> str:
        known = {"k": self.number(self.k), **values}
        return _PLACE.sub(lambda place: known.get(place[1], place[0]), text)


def visible(text: str) -> str:
    """Escape invisible characters and those that change the direction of text."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in "\n\N{NO-BREAK SPACE}" else ascii(sign)[1:-1] for sign in text)


def is_bytes(name: str) -> bool:
    """Return whether numbers under this name are bytes."""
    return name in {"bytes", "content", "stored"} or name.endswith("_bytes")


@cache
def vocabulary(language: str) -> Vocabulary:
    """Return the words of a language."""
    return msgspec.json.decode((Path(__file__).parent / "words" / f"{language}.json").read_bytes(), type=Vocabulary)


def joined(pieces: Iterable[SentencePiece], data: Callable[[str], str], words: Callable[[str], str]) -> str:
    """Join a sentence into one text, data formatted by ``data`` and words by ``words``."""
    return "".join(data(piece.text) if piece.data else words(piece.text) for piece in pieces)
