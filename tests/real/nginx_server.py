"""nginx: in front of a service, or as a web server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.conftest import free_ports, wait_until
from tests.real.programs import HOST, program, running, scratch, whole_lines

_CONFIG = """
daemon off;
master_process off;
pid {home}/pid;
error_log {home}/error.log warn;
events {{}}
http {{
  access_log {home}/access.log;
  client_body_temp_path {home}/body;
  proxy_temp_path {home}/proxy;
  fastcgi_temp_path {home}/fastcgi;
  uwsgi_temp_path {home}/uwsgi;
  scgi_temp_path {home}/scgi;
  default_type application/fhir+ndjson;
  {top}
  server {{
    listen {host}:{port} {ssl};
    {server}
  }}
}}
"""


@dataclass(frozen=True)
class Nginx:
    """A running server; ``url`` without a trailing slash."""

    url: str
    home: Path

    def statuses(self) -> list[int]:
        """The statuses it has answered, in order; the line of an answer may come after its receipt."""
        return [int(line.split('"')[2].split()[0]) for line in whole_lines(self.home / "access.log")]

    def has_answered(self, *statuses: int) -> None:
        """Wait until these are the statuses it has answered, and no others."""
        try:
            wait_until(lambda: self.statuses() == list(statuses))
        except AssertionError:
            raise AssertionError(f"answered {self.statuses()}, not {list(statuses)}") from None


@contextmanager
def nginx(server: str, *, top: str = "", tls: bool = False, port: int | None = None) -> Iterator[Nginx]:
    """nginx with these directives in its server block; ``{home}`` in them is its directory."""
    command = program("nginx", "SLUICE_REAL_NGINX", "python tests/real/get.py nginx")
    with scratch() as home:
        port = port or free_ports()
        if tls:
            server += "\nssl_certificate {home}/chain.pem; ssl_certificate_key {home}/key.pem;"
            issued = trustme.CA().issue_cert(HOST)
            issued.private_key_pem.write_to_path(str(home / "key.pem"))
            issued.cert_chain_pems[0].write_to_path(str(home / "chain.pem"))
        text = _CONFIG.format(
            host=HOST,
            port=port,
            home=home,
            top=top,
            ssl="ssl" if tls else "",
            server=server.replace("{home}", str(home)),
        )
        config = home / "nginx.conf"
        config.write_text(text)
        with running("nginx", [command, "-p", home, "-e", home / "error.log", "-c", config], home / "log", port=port):
            yield Nginx(f"{'https' if tls else 'http'}://{HOST}:{port}", home)
