"""Trusted certificates: the operating system's store plus those of the site (document 1, tls).

Document 3 §1: ``tls.ca_cert_path`` is added to the system's trust store, not to a bundled list,
and may hold server certificates too. Every outgoing client, S3 included, has a context from here.
"""

from __future__ import annotations

import logging
import ssl
import threading

from config import TlsConfig
from config.certificates import KEY, CertificatesError, read_certificates
from tasks.shared.errors import InputError

log = logging.getLogger("sluice.tls")

_warned = threading.Event()


def ssl_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return the context for every outgoing TLS connection.

    Raises ``InputError`` (``tls-ca-bundle``) for a bundle that cannot be used. With
    ``insecure_skip_verify`` a warning is logged, once in a process; the bundle is read all the same, so
    that a broken one is found before verification is enabled.
    """
    try:
        blocks = read_certificates(tls.ca_cert_path) if tls.ca_cert_path is not None else ()
    except CertificatesError as error:
        context = f"{KEY} {tls.ca_cert_path}"
        raise InputError("tls-ca-bundle", error.message, context=context, hint=error.hint) from None
    return _context(tls, blocks)


def _context(tls: TlsConfig, blocks: tuple[str, ...]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    # A server certificate in the bundle is trusted without the CA that signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # Python 3.13 turns strict RFC 5280 checks on; hospital CAs often lack the extensions it asks for, and a
    # bundle that works with one Python must work with the next.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    for block in blocks:
        context.load_verify_locations(cadata=block)
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
