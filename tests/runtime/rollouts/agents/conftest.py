"""Lets the tests of this folder import its helpers and those of the gateway's tests."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "gateway")]
