"""`grpo-runtime`: the command that the pods of a GRPOJob run, and that a person runs on their own machine."""

import argparse
import sys
from collections.abc import Sequence

from grpo_runtime.process.network import bound_name_lookups
from grpo_runtime.subcommands.command import Command
from grpo_runtime.subcommands.follow import FOLLOW
from grpo_runtime.subcommands.pods import RANKS, ROLLOUT, TRAINER
from grpo_runtime.subcommands.results import EXPORT, PLOT, REPORT, SAMPLES
from grpo_runtime.subcommands.run import RUN
from grpo_runtime.subcommands.validate import VALIDATE

_DESCRIPTION = """\
GRPO post-training from a GRPOJob: on this machine, or inside the pods of a cluster.

On your machine, without Kubernetes:
  grpo-runtime validate job.yaml        say what is wrong with a job, or what it would do
  grpo-runtime run job.yaml             train it here, in the same processes that a cluster runs in pods
  grpo-runtime plot grpo-runs/NAME      draw the reward of a job in the terminal
  grpo-runtime samples grpo-runs/NAME   print completions with their rewards
  grpo-runtime report grpo-runs/NAME    write a page with its curves and completions
  grpo-runtime export grpo-runs/NAME --to hf://ORG/NAME   upload its model
  grpo-runtime follow --source s3://BUCKET/PREFIX   serve the newest weights that a job writes there

Inside the pods of a GRPOJob:
  A trainer pod runs `grpo-runtime trainer`: process 1, which starts `grpo-runtime ranks` for the training
  processes, serves /progress, /metrics and /healthz, and ends with the exit code of the training process that
  failed first.
  A rollout pod runs `grpo-runtime rollout`: vLLM's server behind a guard that checks tokens and attempts.
  Both read what to do from environment variables that the operator sets (GRPO_RUN_CONFIG and a few more).
"""
COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (RUN, VALIDATE, PLOT, SAMPLES, REPORT, EXPORT, FOLLOW, TRAINER, RANKS, ROLLOUT)
}
"""Commands in the order of --help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog="grpo-runtime", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(
            commands.add_parser(
                name,
                help=command.help,
                description=command.description,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                add_help=not command.has_own_options,
            )
        )
    options, rest = parser.parse_known_args(given)
    command = COMMANDS[options.command]
    if rest and not command.has_own_options:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.given, options.rest = given, rest
    bound_name_lookups()
    return command.execute(options)


if __name__ == "__main__":
    sys.exit(main())
