"""Makes ``search-parameters.json`` and ``codes.json`` from a package: ``python -m ….definitions.package DIRECTORY``.

``DIRECTORY`` holds the unpacked package that ``README.md`` names, each definition of FHIR R4 as a file. The same
package gives the same bytes, and another version of it is refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from deployments.sandbox.common.definitions.schema import DEFINITIONS
from tests.tools.definitions.build import Json, SourceError, write
from tests.tools.definitions.codes import code_lists
from tests.tools.definitions.parameters import search_parameters

NAME = "hl7.fhir.r4.examples"
VERSION = "4.0.1"


class Package:
    """An unpacked package. Raises ``SourceError`` when it is another one."""

    def __init__(self, directory: Path) -> None:
        described = json.loads((directory / "package.json").read_text(encoding="utf-8"))
        if (found := (described["name"], described["version"])) != (NAME, VERSION):
            raise SourceError(f"{directory} holds {' '.join(found)}, expected {NAME} {VERSION}")
        self._directory = directory
        self.source: Json = {"package": NAME, "version": VERSION, "license": described["license"]}
        """What the files that are made of it say of it."""

    def resources(self, kind: str) -> Iterator[Json]:
        """Its resources of a type, by the names of their files."""
        for path in sorted(self._directory.glob(f"{kind}-*.json")):
            yield json.loads(path.read_text(encoding="utf-8"))


def make(directory: Path, target: Path) -> list[str]:
    """Write both files; returns what could not be taken over, each with its reason. Raises ``SourceError``."""
    package = Package(directory)
    parameters, left_out = search_parameters(package.resources("SearchParameter"))
    lists, unlisted = code_lists(
        package.resources("StructureDefinition"), package.resources("ValueSet"), package.resources("CodeSystem")
    )
    write(target / "search-parameters.json", {"source": package.source} | parameters)
    write(target / "codes.json", {"source": package.source} | lists)
    return left_out + unlisted


def main(words: list[str]) -> int:
    """Run the command; returns the exit code."""
    if len(words) != 1:
        sys.stderr.write("usage: python -m tests.tools.definitions.package DIRECTORY\n")
        return 2
    try:
        left_out = make(Path(words[0]), DEFINITIONS)
    except (OSError, SourceError) as error:
        sys.stderr.write(f"package: {error}\n")
        return 1
    sys.stdout.writelines(f"left out {name}\n" for name in left_out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
