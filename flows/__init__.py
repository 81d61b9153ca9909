"""The flow, the job and the command line, on top of the steps."""

# Every Python reads this file, and before any other: what is in the others may be of the newest kind that we ask for.
import sys

OLDEST = (3, 11)

if sys.version_info[:2] < OLDEST:
    needed, found = (".".join(map(str, version)) for version in (OLDEST, sys.version_info[:2]))
    sys.exit("Sluice needs CPython " + needed + " or newer; this is " + found + ": " + sys.executable)
