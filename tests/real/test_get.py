"""Downloads of ``get.py``: whole or not at all, once, and again after a pin changed. Nothing is downloaded here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real import get
from tests.real.get import FetchError, Program


@pytest.fixture
def fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run it as a command in an empty directory, with one program that ``build`` makes."""

    def run(build: Callable[[Path], None], *names: str, pin: str = "1", needs: tuple[str, ...] = ()) -> int:
        program = Program("thing", "a made-up thing", "SLUICE_REAL_THING", needs, [pin], build, "bin")
        monkeypatch.setattr(get, "PROGRAMS", (program,))
        monkeypatch.setattr("sys.argv", ["get.py", "--directory", str(tmp_path), *names])
        return get.main()

    return run


def built(place: Path) -> None:
    (place / "bin").write_text("program")


def broken(place: Path) -> None:
    (place / "bin").write_text("half a prog")
    raise FetchError("maven ended with 1:\n    no such artifact")


def test_what_is_there_is_named_to_the_tests_and_not_fetched_again(
    fetch: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(built, "thing") == 0
    assert capsys.readouterr().out == f"export SLUICE_REAL_THING='{tmp_path}/thing/bin'\n"
    assert fetch(broken, "thing") == 0
    assert "thing: there" in capsys.readouterr().err


def test_what_fails_leaves_nothing_and_says_why(
    fetch: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(broken, "all") == 1
    said = capsys.readouterr()
    assert "thing: not fetched: maven ended with 1:\n    no such artifact" in said.err
    assert said.out == ""
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_another_pin_is_fetched_and_what_is_there_stays_when_that_fails(
    fetch: Callable[..., int], tmp_path: Path
) -> None:
    assert fetch(built, "thing") == 0
    assert fetch(broken, "thing", pin="2") == 1
    assert (tmp_path / "thing" / "bin").read_text() == "program"
    assert fetch(lambda place: (place / "bin").write_text("newer"), "thing", pin="2") == 0
    assert (tmp_path / "thing" / "bin").read_text() == "newer"


def test_a_command_that_is_missing_and_a_name_that_there_is_not_are_said(
    fetch: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(built, "thing", needs=("no-such-command",)) == 1
    assert "thing: not fetched: it needs no-such-command, which is not on the PATH" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        fetch(built, "nothing")
    assert caught.value.code == 2
    assert "there is no nothing" in capsys.readouterr().err


def test_without_a_name_it_lists_what_there_is_and_what_is_missing(
    fetch: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(broken) == 0
    assert "thing      missing a made-up thing" in capsys.readouterr().err


def test_a_digest_that_is_not_the_pinned_one_is_refused() -> None:
    with pytest.raises(FetchError, match="is not what was pinned"):
        get.expect("the thing", "aa", "bb")
