"""`python -m grpo_operator`."""

import sys

from grpo_operator.cli import main

if __name__ == "__main__":
    sys.exit(main())
