"""The same counts, by other and simple code: everything in memory, one set of patients a path (promise 7)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

Json = dict[str, Any]


def lines(path: Path) -> Iterator[Json]:
    """Yield the lines of a file, whichever form it has."""
    content = path.read_bytes()
    if path.suffix == ".zst":
        content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    for line in content.decode().split("\n"):
        if line.strip():
            yield json.loads(line)


def resources(path: Path) -> Iterator[tuple[Json, str | None]]:
    """Yield every resource of a file, and whose it is."""
    for line in lines(path):
        if line["resourceType"] == "Bundle":
            inside = [entry["resource"] for entry in line["entry"]]
            patients = [one["id"] for one in inside if one["resourceType"] == "Patient"]
            for one in inside:
                yield one, patients[0] if len(patients) == 1 else owner(one)
        else:
            yield line, owner(line)


def owner(resource: Json) -> str | None:
    """Whose a resource is by itself."""
    if resource["resourceType"] == "Patient":
        return str(resource["id"])
    for key in ("subject", "patient", "beneficiary"):
        reference = resource.get(key, {}).get("reference", "")
        if reference.startswith("Patient/"):
            return str(reference.removeprefix("Patient/"))
    return None


def paths(value: Any, path: str) -> Iterator[tuple[str, bool]]:
    """Yield every path in a value, and whether it is a leaf."""
    if isinstance(value, list):
        for one in value:
            yield from paths(one, path)
    elif isinstance(value, dict):
        yield path, False
        for key, one in value.items():
            if key == "extension":
                for extension in one:
                    below = {name: inner for name, inner in extension.items() if name != "url"}
                    yield from paths(below, f"{path}.extension({extension['url']})")
            elif key == "contained":
                yield f"{path}.contained", False
                for inner in one:
                    below = {name: value for name, value in inner.items() if name != "resourceType"}
                    yield from paths(below, f"{path}.contained.{inner['resourceType']}")
            else:
                yield from paths(one, f"{path}.{key.removeprefix('_')}")
    elif value is not None:
        yield path, True


class Naive:
    """Sets of patients by type, by leaf, by element, by code; numbers of resources by type; those of nobody."""

    def __init__(self, files: list[Path]) -> None:
        self.patients: set[str] = set()
        self.types: defaultdict[str, set[str]] = defaultdict(set)
        self.leaves: defaultdict[str, set[str]] = defaultdict(set)
        self.elements: defaultdict[str, set[str]] = defaultdict(set)
        self.codes: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self.files: defaultdict[str, set[str]] = defaultdict(set)
        self.resources: defaultdict[str, int] = defaultdict(int)
        self.nobodys: defaultdict[str, int] = defaultdict(int)
        for file in files:
            for resource, whose in resources(file):
                self._add(file.name, resource, whose)

    def _add(self, file: str, resource: Json, whose: str | None) -> None:
        kind = resource["resourceType"]
        self.resources[kind] += 1
        if whose is None:
            self.nobodys[kind] += 1
            return
        self.patients.add(whose)
        self.files[file].add(whose)
        self.types[kind].add(whose)
        for path, is_leaf in paths({key: one for key, one in resource.items() if key != "resourceType"}, kind):
            (self.leaves if is_leaf else self.elements)[path].add(whose)
        for coding in resource.get("code", {}).get("coding", []):
            self.codes[f"{kind}.code", f"{coding.get('system', '')}|{coding.get('code', '')}"].add(whose)
