"""The commands of `python3 e2e/images/cli.py`."""

import argparse
import sys

from grpo_cluster.console import say
from grpo_cluster.settings import ClusterError
from grpo_images.local import ensure_built, ensure_loaded
from grpo_images.registry import FIND_DIGEST, VARIANTS, publish
from grpo_images.sources import IMAGES

_DESCRIPTION = """Build the operator's and the runtime's image, for the local cluster or a registry.

for example:
  python3 e2e/images/cli.py load runtime
  python3 e2e/images/cli.py publish runtime --variant cuda --registry registry.example.com/my-team \\
    --base python:3.11-slim@sha256:DIGEST"""


def main() -> int:
    """Run one command. Prints image names on standard output, and everything else on standard error."""
    parser = argparse.ArgumentParser(
        prog="cli.py", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("build", "build the Containerfiles with buildah, unless nothing changed"),
        ("load", "bring the images into the local cluster; a code change takes seconds"),
        ("publish", "build and push the images to a registry, for a cluster of your own"),
        ("tags", "print the names of the images of this working tree"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("images", nargs="*", metavar="IMAGE", help="operator, runtime (default: both)")
        if name == "publish":
            command.add_argument("--registry", required=True, help="such as registry.example.com/team")
            command.add_argument(
                "--base",
                required=True,
                metavar="IMAGE@sha256:DIGEST",
                help=f"base image, a Debian with Python 3.11; `{FIND_DIGEST}` prints a digest",
            )
            command.add_argument(
                "--variant", choices=VARIANTS, default="cpu", help="runtime for CPUs or GPUs"
            )
    arguments = parser.parse_args()
    unknown = set(arguments.images) - set(IMAGES)
    if unknown:
        parser.error(f"no image {', '.join(sorted(unknown))}: choose from {', '.join(IMAGES)}")
    try:
        for name in arguments.images or IMAGES:
            image = IMAGES[name]
            if arguments.command == "build":
                print(ensure_built(image))
            elif arguments.command == "load":
                print(ensure_loaded(image))
            elif arguments.command == "publish":
                print(
                    publish(
                        image, registry=arguments.registry, base=arguments.base, variant=arguments.variant
                    )
                )
            else:
                print(image.tag)
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
