"""Say what is wrong with a GRPOJob."""

import argparse
from pathlib import Path

from grpo_runtime.subcommands.pipes import end_when_the_pipe_closes

HELP = "say what is wrong with a GRPOJob, or what it would do"
DESCRIPTION = """\
Say what is wrong with GRPOJobs, by field and in the words of the API server. For a valid job, say what it
would do: the mode and why, pods, GPUs, steps and samples, what it reads, where checkpoints go. Takes YAML
files with any number of documents. The exit code is 0 when each file has a GRPOJob and all are valid, or 1.

For a job with GPUs it also says what each of them will hold at most, from the model's config.json: that of
a file:// model, or of an hf:// model from the cache or the Hub. With --gpu-memory-gib a job that does not
fit is refused, and the fields to change are named.

  grpo-runtime validate examples/copy-disaggregated.yaml my-job.yaml
  grpo-runtime validate --gpu-memory-gib 80 examples/gsm8k-disaggregated.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options and operands of `validate`."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="YAML with one GRPOJob or more")
    parser.add_argument(
        "--gpu-memory-gib", type=float, metavar="N", help="memory of each GPU: refuse jobs that need more"
    )


def execute(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from grpo_runtime.local.validate import validate

    end_when_the_pipe_closes()
    return validate(options.files, gpu_gib=options.gpu_memory_gib)
