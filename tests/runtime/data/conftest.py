"""Lets the tests of this folder import its helpers and those of the parent folder."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
