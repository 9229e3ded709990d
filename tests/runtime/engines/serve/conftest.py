"""Makes the helpers importable for the tests of this folder and the parent."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
