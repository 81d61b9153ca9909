"""Answers that made a step fail are kept for a person."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tasks.shared.errors import ServiceError
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.http.answer import Answer
from tests.peers.data import CANARY


def test_what_one_run_kept_goes_with_the_next_one(tmp_path: Path) -> None:
    FailedAnswers(tmp_path).begin().save_answer(b"an answer")
    assert len(list((tmp_path / "failed").iterdir())) == 1
    FailedAnswers(tmp_path).begin()
    assert list((tmp_path / "failed").iterdir()) == []


def test_an_answer_that_cannot_be_kept_does_not_hide_what_went_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "failed").touch()
    failed = FailedAnswers(tmp_path)
    error = ServiceError("x-answer", "x: no result").made_from(Answer(200, httpx.Headers(), CANARY.encode()))
    with pytest.raises(ServiceError) as caught, failed.saving_answers():
        raise error
    assert (caught.value, caught.value.hint) == (error, None)
    assert "cannot be kept" in caplog.text
    assert CANARY not in caplog.text
