"""`grpo-runtime`: what the pods of a GRPOJob run, and what a person runs to look at a run.

Every import is local: the supervisor must stay small and never load torch.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_DESCRIPTION = """\
What runs inside the pods of a GRPOJob.

A trainer pod runs `grpo-runtime trainer`: process 1, which starts one `grpo-runtime rank` for each training
process, serves /progress, /metrics and /healthz, and ends with the exit code of the rank that failed first.
A rollout pod runs `grpo-runtime rollout`: vLLM's server behind our guard.
Both are told what to do by the environment (GRPO_RUN_CONFIG and a few more; the operator sets them).
`grpo-runtime plot OUTPUT` draws the reward of a run in the terminal.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="grpo-runtime", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_trainer(commands.add_parser("trainer", help="supervise the training processes of one trainer pod"))
    rank = commands.add_parser("rank", help="one training process; started by `trainer`")
    rank.add_argument("--run-dir", type=Path, required=True, help="where to leave progress and last words")
    commands.add_parser(
        "rollout", help="serve one rollout engine (vLLM); --help for its options", add_help=False
    )
    _add_plot(commands.add_parser("plot", help="draw the reward of a run in the terminal"))
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command != "rollout":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if options.command == "trainer":
        return _run_trainer(options)
    if options.command == "rank":
        from grpo_runtime.trainer.rank import run_rank

        run_rank(os.environ, run_dir=options.run_dir)
    if options.command == "rollout":
        from grpo_runtime.serve.main import main as serve

        return serve(rest)
    from grpo_runtime.report.plot import plot_rewards

    print(plot_rewards(options.metrics, width=options.width))
    return 0


def _add_trainer(parser: argparse.ArgumentParser) -> None:
    # the defaults live here and not in SupervisorOptions' import, so that --help answers at once
    from grpo_api.contract.endpoints import RENDEZVOUS_PORT, TRAINER_PORT

    parser.add_argument("--port", type=int, default=TRAINER_PORT, help="HTTP port (%(default)s)")
    parser.add_argument(
        "--rendezvous-port", type=int, default=RENDEZVOUS_PORT, help="where ranks meet on pod 0 (%(default)s)"
    )
    parser.add_argument(
        "--grace-seconds",
        type=float,
        default=110.0,
        help="how long ranks may take to save and stop after SIGTERM; keep it a few seconds below the pod's "
        "terminationGracePeriodSeconds (%(default)s)",
    )
    parser.add_argument(
        "--termination-log",
        type=Path,
        default=Path("/dev/termination-log"),
        help="where the cause of the end is written (%(default)s)",
    )


def _run_trainer(options: argparse.Namespace) -> int:
    from grpo_runtime.trainer.supervisor import SupervisorOptions, supervise

    return supervise(
        os.environ,
        options=SupervisorOptions(
            port=options.port,
            rendezvous_port=options.rendezvous_port,
            grace_seconds=options.grace_seconds,
            termination_log=options.termination_log,
        ),
    )


def _add_plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("metrics", type=Path, help="metrics.jsonl of a run, or the directory it is in")
    parser.add_argument("--width", type=int, default=72, help="columns (%(default)s)")


if __name__ == "__main__":
    sys.exit(main())
