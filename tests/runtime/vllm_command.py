"""`grpo-runtime`, a script for `forks`."""

import sys

from grpo_runtime.cli import main

if __name__ == "__main__":
    sys.exit(main())
