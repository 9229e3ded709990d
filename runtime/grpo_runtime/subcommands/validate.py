"""`grpo-runtime validate`: say what is wrong with a GRPOJob."""

import argparse
import sys
from pathlib import Path

from grpo_runtime.subcommands.command import Command, end_when_the_pipe_closes

_VALIDATE = """\
Say what is wrong with GRPOJobs, by field and in the words of the API server. For a valid job, say what it
would do: the mode and why, pods, GPUs, steps and samples, what it reads, where checkpoints go. Takes YAML
files with any number of documents. The exit code is 0 when each file has a GRPOJob and all are valid, or 1.

For a job with GPUs it also says what each of them will hold at most, from the model's config.json: that of
a file:// model, or of an hf:// model from the cache or the Hub. With --gpu-memory-gib a job that does not
fit is refused, and the fields to change are named.

With --data it also reads the data, encodes every prompt with the model's tokenizer, calls each reward
function once, and plays a group of each environment with a script in place of the policy, and reports the
first faults: no weights are loaded, no engine starts, and services and reward models are left alone. Claims
and ConfigMaps that are not in the file are named by --volume, as for `run`.

With --node it looks at the machine or the pod that it runs on: device files and their rights, driver,
compiler, /dev/shm, memory of the GPUs, peer access, and NCCL between them; each with what to do. Files are
then planned with the memory of the smallest GPU.

  grpo-runtime validate examples/copy-disaggregated.yaml my-job.yaml
  grpo-runtime validate --gpu-memory-gib 80 examples/gsm8k-disaggregated.yaml
  grpo-runtime validate --data --volume claim/data=./data my-job.yaml
  grpo-runtime validate --node my-job.yaml
"""


def _add_arguments_of_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="YAML with one GRPOJob or more")
    parser.add_argument(
        "--data", action="store_true", help="look at data, tokenizer, rewards and environments, too"
    )
    parser.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="KIND/NAME=DIR",
        help="a claim, ConfigMap or Secret of the job as a folder, for --data",
    )
    parser.add_argument("--node", action="store_true", help="look at this node, too")
    parser.add_argument(
        "--gpu-memory-gib", type=float, metavar="N", help="memory of each GPU: refuse jobs that need more"
    )


def _validate(options: argparse.Namespace) -> int:
    from grpo_runtime.local.validate import validate

    if not options.files and not options.node:
        print("grpo-runtime validate: name a FILE, or --node", file=sys.stderr)
        return 2
    end_when_the_pipe_closes()
    gpu_gib, is_node_fine = options.gpu_memory_gib, True
    if options.node:
        from grpo_runtime.local.node import check_node

        found, smallest_gib = check_node()
        print("this node:", *found, sep="\n")
        gpu_gib, is_node_fine = gpu_gib or smallest_gib, not any(finding.fix for finding in found)
    volumes = options.volume if options.data else None
    return max(validate(options.files, gpu_gib=gpu_gib, volumes=volumes), int(not is_node_fine))


VALIDATE = Command(
    "validate",
    help="say what is wrong with a GRPOJob or with a node, or what a job would do",
    description=_VALIDATE,
    add_arguments=_add_arguments_of_validate,
    execute=_validate,
)
