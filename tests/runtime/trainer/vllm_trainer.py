"""The trainer pod of a job with real engines, a script for `forks`.

`vllm_trainer.py TERMINATION_LOG PORT RENDEZVOUS_PORT` is its process 1, with the environment of one.
"""

import sys

from forked_supervisor import supervise_forked

from grpo_runtime.trainer.rank_imports import import_rank

if __name__ == "__main__":
    sys.exit(supervise_forked(*sys.argv[1:], import_rank=lambda run_dir: import_rank(run_dir=run_dir)))
