"""`grpo-runtime rollout` in an image that brings a transfer engine of its own. Run as a script."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import socket_engine

# the engine's process is a fork of this one
socket_engine.register()

if __name__ == "__main__":
    from grpo_runtime.engines.serve.main import main

    sys.exit(main())
