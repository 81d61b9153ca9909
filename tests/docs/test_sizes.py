"""docs/sizes.md says what its command says."""

from __future__ import annotations

import re
import shlex

import pytest

from deployments.sizes import main
from tests.docs.pages import Block, example, read
from tests.docs.references import ROOT


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            example("docs/sizes.md", "python -m deployments.sizes --patients 100000 "),
            example("docs/sizes.md", "100,000 patients"),
        ),
        (
            example("docs/sizes.md", "python -m deployments.sizes --patients 1000000 "),
            example("docs/sizes.md", "1,000,000 patients"),
        ),
    ],
    ids=["a cohort", "a million patients"],
)
def test_the_page_shows_what_the_command_prints(asked: Block, said: Block, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(asked.text)
    assert words[:3] == ["python", "-m", "deployments.sizes"]
    assert main(words[3:]) == 0
    assert capsys.readouterr().out.strip() == said.text.strip()


def test_the_page_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    options = set(re.findall(r"(?<![\w-])--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    page = read(ROOT / "docs/sizes.md")
    assert [option for option in sorted(options) if f"`{option}`" not in page] == []
