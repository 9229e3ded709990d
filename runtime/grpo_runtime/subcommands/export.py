"""Upload the model of a finished run."""

import argparse
from pathlib import Path

HELP = "upload the model of a finished run"
DESCRIPTION = """\
Upload the model of a finished run to the Hugging Face Hub or to an S3-compatible store: what `export` of a
GRPOJob does at the end. Files that are there already, with the same digest, are not sent again.

  grpo-runtime export grpo-runs/copy-local --to hf://ORG/NAME --private
  grpo-runtime export /output/model --to s3://models/copy --endpoint https://minio.storage:9000

Credentials are those of `hf auth login` or HF_TOKEN, and for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,
or with --credentials the files of a Secret: `token`, or `accessKeyId` and `secretAccessKey`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options and operands of `export`."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="output directory, or the model in it")
    parser.add_argument("--to", required=True, metavar="URL", help="hf://ORG/NAME or s3://BUCKET/PREFIX")
    parser.add_argument("--endpoint", metavar="URL", help="address of a store that is not Amazon's")
    parser.add_argument("--region", help="region of the bucket (us-east-1)")
    parser.add_argument(
        "--private", action=argparse.BooleanOptionalAction, help="whether a new repository is private"
    )
    parser.add_argument("--credentials", type=Path, metavar="DIR", help="the keys of a Secret as files")


def execute(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
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
