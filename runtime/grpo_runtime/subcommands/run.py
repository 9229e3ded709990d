"""`grpo-runtime run`: train a GRPOJob on this machine."""

import argparse
import os
from pathlib import Path

from grpo_runtime.subcommands.command import Command

_RUN = """\
Train a GRPOJob on this machine, without Kubernetes and without a GPU.

It starts the processes that a cluster would start in pods: the trainer with its training processes and, in
mode Disaggregated, the vLLM engines. It reads the same file that `kubectl apply` takes.

  grpo-runtime run examples/copy-local.yaml

Ctrl-C saves a checkpoint at the next step boundary and stops; the same command continues from it. A second
Ctrl-C ends everything at once. A trainer that fails is started again as the next attempt, up to
failurePolicy.maxRestarts times; an engine that fails is started again at once.

The output directory gets metrics.jsonl, checkpoints/, model/ (a Hugging Face directory), TensorBoard's files,
and logs/ with what each process printed. For a PersistentVolumeClaim, a ConfigMap or the Secret of a reward
service, say which directory stands for it:

  grpo-runtime run job.yaml --volume claim/models=/data/models --volume configmap/rewards=./rewards

ConfigMaps in the same file need no flag. spec.checkpoint.claimName needs none either: checkpoints go to the
output directory. The exit code is 0 when every step is done, 143 after a stop, 130 after a second Ctrl-C, 75
when the volume is full, and otherwise that of the process that failed.
"""


def _add_arguments_of_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML with the GRPOJob")
    parser.add_argument("--job", metavar="NAME", help="which GRPOJob, if the file has several")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="output directory (default ./grpo-runs/NAME)"
    )
    parser.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="KIND/NAME=DIR",
        help="the directory that stands for claim/NAME, configmap/NAME or secret/NAME; may be given several "
        "times",
    )


def _run(options: argparse.Namespace) -> int:
    from grpo_runtime.local.command import RunOptions, run

    return run(
        RunOptions(
            file=options.file,
            job=options.job,
            output=options.output,
            volumes=options.volume,
            command=("grpo-runtime", *options.given),
        ),
        environment=os.environ,
    )


RUN = Command(
    "run",
    help="train a GRPOJob on this machine",
    description=_RUN,
    add_arguments=_add_arguments_of_run,
    execute=_run,
)
