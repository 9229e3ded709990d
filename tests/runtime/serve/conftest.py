"""Makes the helpers importable for the tests of this folder, the parent and the trainer's."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
sys.path.append(str(Path(__file__).parents[1] / "trainer"))
