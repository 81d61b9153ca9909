"""The certificates of ``tls.ca_cert_path``: whether they can be used is known before anything connects (document 3)."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Final

KEY: Final = "tls.ca_cert_path"

_BLOCK = re.compile(r"-----BEGIN (?P<label>(?:X509 |TRUSTED )?CERTIFICATE)-----.*?-----END (?P=label)-----", re.DOTALL)
_HINT = f"{KEY} must name a readable PEM file with at least one certificate"


class CertificatesError(ValueError):
    """The bundle cannot be used. ``message`` says why, ``hint`` what to do."""

    def __init__(self, message: str, hint: str = _HINT) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def read_certificates(path: Path) -> tuple[str, ...]:
    """Return the certificates of a PEM bundle, each as its own PEM text, in the file's order. All of them load.

    Text between the certificates and blocks of other kinds (keys, parameters) are passed over, as OpenSSL does.

    Raises ``CertificatesError`` when the file cannot be read, holds no certificate, or one that is damaged.
    """
    try:
        # Bundles carry names as comments in any encoding; only the ASCII between the markers matters.
        text = path.read_bytes().decode("latin-1")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CertificatesError(f"the certificate bundle cannot be read: {reason}") from None
    blocks = tuple(match.group(0) for match in _BLOCK.finditer(text))
    if not blocks:
        found = "is empty" if not text.strip() else "holds no PEM certificate"
        der = "a DER file is converted with: openssl x509 -inform der -in FILE -out FILE.pem"
        raise CertificatesError(f"the certificate bundle {found}", f"{_HINT}; {der}")
    trying = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for number, block in enumerate(blocks, 1):
        try:
            trying.load_verify_locations(cadata=block)
        except (ssl.SSLError, ValueError):
            raise CertificatesError(f"certificate {number} of {len(blocks)} in the bundle is damaged") from None
    return blocks
