"""JSON whose numbers stay as they are written."""

from __future__ import annotations

from typing import Final

import msgspec

decode: Final = msgspec.json.Decoder(float_hook=str.encode).decode
"""Read JSON; a number with a point or an exponent is ``bytes`` as it is written, and nothing else is."""
