"""The local cluster's command line: `python e2e/cluster/cli.py up`. See docs/local-cluster.md."""

import sys

from grpo_cluster.command_line import main

if __name__ == "__main__":
    sys.exit(main())
