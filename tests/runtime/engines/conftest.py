"""Makes the helpers of colocated engines importable."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "colocated"))
