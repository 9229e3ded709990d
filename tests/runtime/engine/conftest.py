"""Makes the helpers of the trainer's tests importable."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "trainer"))
