"""Fetch every program that is missing, and run the tests against them: ``python -m tests.real``."""

import sys

import pytest

from tests.real.services import main

main(["all"])
sys.exit(pytest.main(["-m", "real", "-n", "0", "tests/real"]))
