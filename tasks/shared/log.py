"""The one logger of the pipeline. Its messages carry counts, names of files, types and ids of jobs; never data."""

from __future__ import annotations

import logging

logger = logging.getLogger("sluice")
