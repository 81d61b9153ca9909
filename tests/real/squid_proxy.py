"""squid as a forward proxy that requires a password, and alone can resolve the names of the servers behind it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tests.conftest import free_ports
from tests.real.programs import HOST, program, running, scratch, whole_lines

NAME = "fhir.hospital.test"
BUCKET_HOST = "sluice-real.s3.hospital.test"
FORBIDDEN = "forbidden.hospital.test"
USER = "site user"
PASSWORD = "p:ss/w@rd%+"

# squid hands user and password to its helper one pair a line, percent-encoded where RFC 1738 calls a sign unsafe.
_HELPER = f"""#!/bin/sh
while read -r user password; do
  [ "$user $password" = "{quote(USER)} {quote(PASSWORD, safe="/:@+")}" ] && echo OK || echo ERR
done
"""

_CONFIG = """
http_port {host}:{port}
visible_hostname proxy.hospital.test
pid_filename none
hosts_file {home}/hosts
mime_table {home}/mime
unlinkd_program {home}/helper
pinger_enable off
icon_directory {home}
coredump_dir {home}
cache deny all
access_log stdio:{home}/access.log
cache_log {home}/cache.log
cache_effective_user {user}
shutdown_lifetime 0 seconds
connect_timeout 2 seconds
auth_param basic program {home}/helper
auth_param basic children 1
auth_param basic realm hospital
acl known proxy_auth REQUIRED
acl forbidden dstdomain {forbidden}
http_access deny forbidden
http_access allow known
http_access deny all
"""


@dataclass(frozen=True)
class Squid:
    """A running proxy. ``url`` holds the credentials, as an environment variable would."""

    port: int
    home: Path

    @property
    def url(self) -> str:
        return f"http://{quote(USER, safe='')}:{quote(PASSWORD, safe='')}@{HOST}:{self.port}"

    def served(self) -> list[tuple[str, str, str]]:
        """Of every finished request the status as squid logs it, the method, and the target without its port."""
        fields = [line.split() for line in whole_lines(self.home / "access.log")]
        return [(field[3], field[5], field[6].split("://")[-1].split(":")[0]) for field in fields]


@contextmanager
def squid_running() -> Iterator[Squid]:
    squid = program("squid", "SLUICE_REAL_SQUID", "python tests/real/get.py squid")
    with scratch() as home:
        (home / "hosts").write_text(f"{HOST} {NAME} {BUCKET_HOST} {FORBIDDEN}\n")
        (home / "mime").touch()  # what comes with squid is not where squid looks, when it is unpacked and not installed
        (home / "helper").write_text(_HELPER)
        (home / "helper").chmod(0o755)
        user = "nobody" if os.geteuid() == 0 else str(os.geteuid())
        port = free_ports()
        config = home / "squid.conf"
        config.write_text(_CONFIG.format(host=HOST, port=port, home=home, user=user, forbidden=FORBIDDEN))
        log = home / "log"
        log.touch()
        if os.geteuid() == 0:  # squid refuses to work as root
            for path in (home, *home.iterdir()):
                shutil.chown(path, "nobody")
        with running("squid", [squid, "-N", "-f", config], log, port=port):
            yield Squid(port, home)
