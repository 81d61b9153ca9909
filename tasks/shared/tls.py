"""Whom we trust: the operating system's store plus the site's own certificates (document 1, tls).

Document 3 §1: ``tls.ca_cert_path`` is added to the system's trust store, not to somebody's bundled list,
and may hold server certificates too. One context serves every outgoing client, S3 included.
"""

from __future__ import annotations

import logging
import re
import ssl
import threading
from pathlib import Path

from config import TlsConfig
from tasks.shared.errors import InputError

log = logging.getLogger("sluice.tls")

_BLOCK = re.compile(r"-----BEGIN (?P<label>(?:X509 |TRUSTED )?CERTIFICATE)-----.*?-----END (?P=label)-----", re.DOTALL)
_HINT = "tls.ca_cert_path must name a readable PEM file with at least one certificate"

_warned = threading.Event()


def read_bundle(path: Path) -> tuple[str, ...]:
    """The certificates of a PEM bundle, each as its own PEM text, in the file's order.

    Text between the certificates and blocks of other kinds (keys, parameters) are passed over, as OpenSSL
    does.

    Raises ``InputError`` (``tls-ca-bundle``) when the file cannot be read or holds no certificate.
    """
    try:
        # Bundles carry names as comments in any encoding; only the ASCII between the markers matters.
        text = path.read_bytes().decode("latin-1")
    except OSError as error:
        raise InputError(
            "tls-ca-bundle",
            f"the certificate bundle cannot be read: {error.strerror or type(error).__name__}",
            context=f"tls.ca_cert_path {path}",
            hint=_HINT,
        ) from None
    blocks = tuple(match.group(0) for match in _BLOCK.finditer(text))
    if not blocks:
        found = "is empty" if not text.strip() else "holds no PEM certificate"
        raise InputError(
            "tls-ca-bundle",
            f"the certificate bundle {found}",
            context=f"tls.ca_cert_path {path}",
            hint=f"{_HINT}; a DER file is converted with: openssl x509 -inform der -in FILE -out FILE.pem",
        )
    return blocks


def ssl_context(tls: TlsConfig) -> ssl.SSLContext:
    """The context for every outgoing TLS connection.

    Raises ``InputError`` (``tls-ca-bundle``) for a bundle that cannot be used. With
    ``insecure_skip_verify`` a warning is logged, once in a process; the bundle is read all the same, so
    that a broken one is found before somebody turns verification on.
    """
    blocks = read_bundle(tls.ca_cert_path) if tls.ca_cert_path is not None else ()
    context = ssl.create_default_context()
    # A server certificate in the bundle is trusted without the CA that signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # Python 3.13 turns strict RFC 5280 checks on; hospital CAs often lack the extensions it asks for, and a
    # bundle that works with one Python must work with the next.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    for number, block in enumerate(blocks, 1):
        try:
            context.load_verify_locations(cadata=block)
        except (ssl.SSLError, ValueError):
            raise InputError(
                "tls-ca-bundle",
                f"certificate {number} of {len(blocks)} in the bundle is damaged",
                context=f"tls.ca_cert_path {tls.ca_cert_path}",
                hint=_HINT,
            ) from None
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if not _warned.is_set():
            _warned.set()
            log.warning(
                "TLS VERIFICATION IS OFF (tls.insecure_skip_verify): anybody on the network can read and "
                "change the data and the credentials of this run. For development and testing only."
            )
    return context
