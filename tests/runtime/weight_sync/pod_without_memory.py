"""`grpo-runtime rollout` on a machine that has no memory left to stage weights in: run as a script."""

import sys

from grpo_runtime.process import free_memory

free_memory.free_memory = lambda: 0

if __name__ == "__main__":
    from grpo_runtime.engines.serve.main import main

    sys.exit(main())
