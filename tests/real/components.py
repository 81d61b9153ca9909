"""External programs that Sluice is tested with: their names, roles and installed versions."""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Component:
    """One program. ``name`` as ``get.py``, marks and fixtures call it; ``stands_for``: where Sluice meets it.

    ``variable`` names it in the environment, else ``command`` on the ``PATH``. ``version`` asks what is there, at that
    path; ``how`` says how to get it.
    """

    name: str
    title: str
    stands_for: str
    variable: str
    version: Callable[[Path], str]
    command: str = ""
    how: str = ""

    def place(self) -> Path | None:
        """Return its location; ``None`` if it is missing."""
        given = os.environ.get(self.variable) or shutil.which(self.command or "-")
        return Path(given) if given else None

    def get(self) -> str:
        """Return the instructions for installing it."""
        return self.how or f"python tests/real/get.py {self.name}"


def _jar(pattern: str) -> Callable[[Path], str]:
    """Return the version in the name of the one jar that fits."""

    def version(place: Path) -> str:
        found = {match[1] for path in (place / "lib").iterdir() if (match := re.fullmatch(pattern, path.name))}
        (one,) = found
        return one

    return version


def _module(name: str) -> Callable[[Path], str]:
    """Return the version of a Go module that a program was built with, from the program file."""

    def version(program: Path) -> str:
        with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = re.search(rb"\nmod\t%b\t(\S+)" % re.escape(name.encode()), content)
            return found[1].decode().removeprefix("v") if found else "of unknown origin"

    return version


def _printed_version(*options: str) -> Callable[[Path], str]:
    """Return the version that a command prints of itself."""

    def version(command: Path) -> str:
        words = [str(command), *options]
        said = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        found = re.search(r"(\d+(?:\.\d+)+)", said.stdout)
        return found[1] if found else "unknown"

    return version


def _pathling(place: Path) -> str:
    names = sorted(path.name for path in place.glob("lib/python*/site-packages/*.dist-info"))
    found = dict(name.removesuffix(".dist-info").split("-", 1) for name in names)
    return f"{found['pathling']}, Spark {found['pyspark']}"


def _oidc(place: Path) -> str:
    described = json.loads((place / "node_modules/oidc-provider/package.json").read_bytes())
    return str(described["version"])


def _keycloak(place: Path) -> str:
    return (place / "version.txt").read_text(encoding="utf-8").split()[-1]


def _minio(place: Path) -> str:
    """The release of a commit is its moment."""
    module = _module("github.com/minio/minio")(place)
    moment = re.search(r"\d-(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)-", module)
    return "RELEASE.{}-{}-{}T{}-{}-{}Z".format(*moment.groups()) if moment else module


def _postgres(place: Path) -> str:
    return _printed_version("--version")(place / "bin/postgres" if place.is_dir() else place)


def _torch(_: Path) -> str:
    return os.environ.get("SLUICE_REAL_TORCH_VERSION") or "of unknown version"


COMPONENTS: tuple[Component, ...] = (
    Component(
        "torch", "TORCH", "extraction server", "SLUICE_REAL_TORCH", _torch,
        how="bring a source tree: docs/development.md, TORCH",
    ),
    Component(
        "validator", "HL7's validator in server mode", "validation service", "SLUICE_REAL_VALIDATOR",
        _jar(r"org\.hl7\.fhir\.validation-(\d[\w.]*)\.jar"),
    ),
    Component(
        "pathling", "Pathling behind a service that answers as fhir-flattener does", "flattening service",
        "SLUICE_REAL_PATHLING", _pathling,
    ),
    Component(
        "hapi", "HAPI's JPA server", "FHIR server, transfer endpoint", "SLUICE_REAL_HAPI",
        _jar(r"hapi-fhir-jpaserver-base-(\d[\w.]*)\.jar"),
    ),
    Component(
        "versitygw", "versitygw", "S3 store", "SLUICE_REAL_S3", _module("github.com/versity/versitygw"), "versitygw"
    ),
    Component("minio", "MinIO", "S3 store", "SLUICE_REAL_MINIO", _minio, "minio"),
    Component(
        "rclone", "rclone, serve s3", "S3 store", "SLUICE_REAL_RCLONE", _module("github.com/rclone/rclone"), "rclone"
    ),
    Component("keycloak", "Keycloak", "OIDC provider", "SLUICE_REAL_KEYCLOAK", _keycloak),
    Component("oidc", "oidc-provider", "OIDC provider", "SLUICE_REAL_OIDC", _oidc),
    Component("nginx", "nginx", "reverse proxy, web server", "SLUICE_REAL_NGINX", _printed_version("-v"), "nginx"),
    Component("squid", "squid", "forward proxy with a password", "SLUICE_REAL_SQUID", _printed_version("-v"), "squid"),
    Component(
        "postgresql", "PostgreSQL", "database of the Prefect server", "SLUICE_REAL_POSTGRESQL", _postgres, "postgres"
    ),
)  # fmt: skip
"""In the order of the page."""
NAMES = frozenset(component.name for component in COMPONENTS)

COMPONENTS_OF, DIFFERS, FIGURE = "components", "differs", "figure"
"""What a test's report says of it: the names of its components, known differences, figures."""


def components_of(item: pytest.Item) -> frozenset[str]:
    """Whom a test talks to: by its marks ``real(name, …)``, its fixtures, and its parameter ``kind``."""
    marked = {str(name) for mark in item.iter_markers("real") for name in mark.args}
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return NAMES & {*marked, *getattr(item, "fixturenames", ()), str(parameters.get("kind", ""))}


def about(item: pytest.Item) -> str:
    """Return the first sentence of a test's module."""
    module = item.getparent(pytest.Module)
    text = " ".join(((module.obj.__doc__ if module else None) or "").split())
    return text.partition(". ")[0].removesuffix(".")
