"""Makes the helpers of weight syncs importable."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(_TESTS / "weight_sync"), str(_TESTS / "export"), str(_TESTS)]
