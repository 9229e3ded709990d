"""Lets the tests of this folder import its helpers and those of the parity files."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
# the translation of TRL's cases
sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))
