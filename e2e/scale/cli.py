"""How many jobs one operator carries: `make bench-scale`."""

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(_ROOT / folder) for folder in ("e2e/cluster", "bench")]

if __name__ == "__main__":
    from grpo_scale.command_line import main

    sys.exit(main())
