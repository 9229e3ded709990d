"""Makes the helpers of this folder and of fleets importable."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "engines" / "fleet")]
