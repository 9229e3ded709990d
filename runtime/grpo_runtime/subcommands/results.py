"""What a job has brought: the commands that take its output directory, plot, samples, report and export."""

import argparse
import sys
from pathlib import Path

from grpo_runtime.subcommands.command import Command, end_when_the_pipe_closes

_PLOT = """\
Draw the reward of each step of a job in the terminal, also while the job runs.

  grpo-runtime plot grpo-runs/copy-local
"""


def _add_arguments_of_plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("metrics", type=Path, help="metrics.jsonl of a job, or the directory it is in")
    parser.add_argument("--width", type=int, default=72, help="columns (%(default)s)")


def _plot(options: argparse.Namespace) -> int:
    from grpo_runtime.report.plot import plot_run

    end_when_the_pipe_closes()
    print(plot_run(options.metrics, width=options.width))
    return 0


PLOT = Command(
    "plot",
    help="draw the reward of a job in the terminal",
    description=_PLOT,
    add_arguments=_add_arguments_of_plot,
    execute=_plot,
)


_SAMPLES = """\
Print completions of a job with their rewards, group by group, also while the job runs: of the newest step
that was kept, or of another one. report.samplesEverySteps of the job says which steps are kept.

  grpo-runtime samples grpo-runs/copy-local
  grpo-runtime samples grpo-runs/copy-local --step 40 --groups 10 --order worst

`--order mixed` begins with the groups whose rewards differ most, which the policy learns from, and
`--order failed` with those of which most was given up. An episode of an agent is shown turn by turn, with
what of it was trained. `--eval` shows an evaluation. The tables are Parquet files in completions/ of the
output directory, for pandas or `datasets`:

  load_dataset("parquet", data_files="grpo-runs/copy-local/completions/*.parquet")
"""


def _add_arguments_of_samples(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="output directory of the job")
    parser.add_argument("--step", type=int, metavar="N", help="a step that was kept (default: the newest)")
    parser.add_argument("--eval", action="store_true", help="the evaluation after it (default: the newest)")
    parser.add_argument("--groups", type=int, default=3, metavar="N", help="prompts to show (%(default)s)")
    parser.add_argument(
        "--order",
        choices=("step", "best", "worst", "mixed", "failed"),
        default="step",
        help="which come first",
    )


def _samples(options: argparse.Namespace) -> int:
    from grpo_runtime.errors import UserError
    from grpo_runtime.report.samples_text import Order, describe_samples

    end_when_the_pipe_closes()
    try:
        text = describe_samples(
            options.folder,
            step=options.step,
            num_groups=options.groups,
            order=Order(options.order),
            is_evaluation=options.eval,
        )
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(text)
    return 0


SAMPLES = Command(
    "samples",
    help="print completions of a job with their rewards",
    description=_SAMPLES,
    add_arguments=_add_arguments_of_samples,
    execute=_samples,
)


_REPORT = """\
Write one HTML file about a job that needs no server and no network: curves, completions, where the time of a
step goes, which split of GPUs would be better, and the configuration. It may be written while the job runs;
a job writes its own at the end.

  grpo-runtime report grpo-runs/copy-local
  grpo-runtime report grpo-runs/copy-local --output copy.html
"""


def _add_arguments_of_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="output directory of the job")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the page (default FOLDER/report.html)")


def _report(options: argparse.Namespace) -> int:
    from grpo_runtime.errors import UserError
    from grpo_runtime.report.page import write_page

    try:
        print(write_page(options.folder, into=options.output))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


REPORT = Command(
    "report",
    help="write a page with the curves and completions of a job",
    description=_REPORT,
    add_arguments=_add_arguments_of_report,
    execute=_report,
)


_EXPORT = """\
Upload the model of a finished run to the Hugging Face Hub or to an S3-compatible store: what `export` of a
GRPOJob does at the end. Files that are there already, with the same digest, are not sent again.

  grpo-runtime export grpo-runs/copy-local --to hf://ORG/NAME --private
  grpo-runtime export /output/model --to s3://models/copy --endpoint https://minio.storage:9000

Credentials are those of `hf auth login` or HF_TOKEN, and for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,
or with --credentials the files of a Secret: `token`, or `accessKeyId` and `secretAccessKey`.
"""


def _add_arguments_of_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="output directory, or the model in it")
    parser.add_argument("--to", required=True, metavar="URL", help="hf://ORG/NAME or s3://BUCKET/PREFIX")
    parser.add_argument("--endpoint", metavar="URL", help="address of a store that is not Amazon's")
    parser.add_argument("--region", help="region of the bucket (us-east-1)")
    parser.add_argument(
        "--private", action=argparse.BooleanOptionalAction, help="whether a new repository is private"
    )
    parser.add_argument("--credentials", type=Path, metavar="DIR", help="the keys of a Secret as files")


def _export(options: argparse.Namespace) -> int:
    from grpo_runtime.export.command import ExportOptions, export

    return export(
        ExportOptions(
            folder=options.folder,
            to=options.to,
            endpoint=options.endpoint,
            region=options.region,
            private=options.private,
            credentials=options.credentials,
        )
    )


EXPORT = Command(
    "export",
    help="upload the model of a finished run",
    description=_EXPORT,
    add_arguments=_add_arguments_of_export,
    execute=_export,
)
