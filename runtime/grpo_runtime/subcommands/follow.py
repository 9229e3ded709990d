"""`grpo-runtime follow`: serve the newest weights of a store that a job writes to."""

import argparse
from pathlib import Path

from grpo_runtime.process.network import ANY_ADDRESS
from grpo_runtime.subcommands.command import Command

_FOLLOW = """\
Serve the newest weights of a store that a GRPOJob with weightSync.disk writes to, with vLLM, and update them
whenever the job has written newer ones. It needs the store and nothing else of the job, and outlives it.

  grpo-runtime follow --source file:///mnt/weights/copy --token /etc/follow/token --cache /tmp/weights
  grpo-runtime follow --source s3://models/copy --token /etc/follow/token -- --tensor-parallel-size 2

It answers /v1/models, /v1/completions, /v1/chat/completions and /metrics for who sends the token, and says in
the header x-grpo-weight-version which weights an answer begins with. What follows -- is given to vLLM.

Credentials of a bucket are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or with --credentials the files of a
Secret: `accessKeyId` and `secretAccessKey`.
"""


def _add_arguments_of_follow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--source", required=True, metavar="URL", help="file:///FOLDER or s3://BUCKET/PREFIX of the weights"
    )
    parser.add_argument(
        "--token", required=True, type=Path, metavar="FILE", help="file with the token that callers send"
    )
    parser.add_argument("--endpoint", metavar="URL", help="address of a store that is not Amazon's")
    parser.add_argument("--region", help="region of the bucket (us-east-1)")
    parser.add_argument("--credentials", type=Path, metavar="DIR", help="the keys of a Secret as files")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path("/cache/weights"),
        metavar="DIR",
        help="where the newest version is copied to (%(default)s)",
    )
    parser.add_argument("--host", default=ANY_ADDRESS, help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (%(default)s)")
    parser.add_argument(
        "--interval-seconds",
        type=float,
        default=5.0,
        help="pause between two looks for newer weights (%(default)s)",
    )
    parser.add_argument(
        "--timeout-seconds", type=float, default=600.0, help="longest that an update may take (%(default)s)"
    )
    parser.add_argument("engine", nargs="*", metavar="ARGUMENT", help="after --: arguments of vLLM's server")


def _follow(options: argparse.Namespace) -> int:
    from grpo_runtime.engines.follow.main import FollowOptions, follow

    return follow(
        FollowOptions(
            source=options.source,
            token=options.token,
            cache=options.cache,
            host=options.host,
            port=options.port,
            interval_seconds=options.interval_seconds,
            timeout_seconds=options.timeout_seconds,
            endpoint=options.endpoint,
            region=options.region,
            credentials=options.credentials,
            engine=tuple(options.engine),
        )
    )


FOLLOW = Command(
    "follow",
    help="serve the newest weights that a job with weightSync.disk writes, here or in another cluster",
    description=_FOLLOW,
    add_arguments=_add_arguments_of_follow,
    execute=_follow,
)
