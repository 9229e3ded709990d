"""Build the product's images and bring them into a cluster: `python e2e/images/cli.py --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))

if __name__ == "__main__":
    from grpo_images.command_line import main

    sys.exit(main())
