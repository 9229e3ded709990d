"""Lets the tests of this folder import the helpers beside them and those of the parent folder."""

import sys
from pathlib import Path

sys.path[:0] = [str(folder) for folder in Path(__file__).parents[:2]]
