"""Make ``docs/images/demo.svg``, the picture of the README: ``python -m tests.docs.picture`` runs the demo for it."""

from __future__ import annotations

import io
import re
import subprocess
import sys

from rich.console import Console
from rich.text import Text

from tests.conftest import ROOT

PICTURE = ROOT / "docs/images/demo.svg"
COLUMNS = 100


def main() -> None:
    """Run the demo, and draw what it prints on a terminal of 100 columns."""
    command = [sys.executable, "-m", "flows.run", "demo"]
    printed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(printed.rstrip()))
    picture = console.export_svg(title="sluice demo")
    # The page loads nothing: a font of the reader's machine will do.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL).replace("Fira Code, ", ""))


if __name__ == "__main__":
    main()
