"""Install the operator, train a tiny policy, watch it: `make demo`."""

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(_ROOT / folder) for folder in ("e2e/cluster", "e2e/images", "runtime")]

if __name__ == "__main__":
    from grpo_demo.command_line import main

    sys.exit(main())
