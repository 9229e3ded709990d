"""The commands of the README, and which test runs each of them."""

import re
from collections.abc import Iterator

from grpo_images.sources import REPOSITORY

README = REPOSITORY / "README.md"
GUIDE = REPOSITORY / "docs" / "guides" / "own-data-and-reward.md"
SHELL = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)

NOT_RUN = {
    "git clone ": "to run the tests is to have a clone",
    "docker ": "there is no Docker here: `make images` builds the same Containerfiles with buildah",
    "python3 e2e/images/cli.py publish ": "needs a registry; `make images` builds the same Containerfiles",
    "make demo CONTEXT=": "needs a registry; all but the place of the images is as in `make demo`",
}
"""How the commands begin that no test runs, and why no test runs them."""

LOGS_OF_THE_FAILED_POD = (
    "kubectl logs $(kubectl get grpojob copy --output jsonpath='{.status.lastFailure.pod}')"
)
"""Of a job in which nothing has failed there is no such pod."""

RUN_ELSEWHERE = {
    "make demo": "every scenario runs its parts: the cluster, the images, the chart",
    ".venv/bin/grpo-runtime validate examples/*.yaml": "tests/runtime/local/test_validate.py, on each",
    ".venv/bin/grpo-runtime run examples/copy-local.yaml": "tests/runtime/local, with fewer steps",
    "make cluster-down": "e2e/scenarios/test_cluster_lifecycle.py, on an instance of its own",
    "make setup": "the first part of `make test`",
    "make check": "a part of `make test`",
    "make test-fast": "`make test` runs all of its tests",
    "make test": ".ci/run runs it on each change",
    "make test-matrix": "`make test` runs a selection of its cases",
    "make help": "tests/contract/test_readme.py",
    LOGS_OF_THE_FAILED_POD: "e2e/scenarios/test_readme.py, of a job that failed",
    ".venv/bin/grpo-runtime export grpo-runs/my-job --to s3://models/my-policy "
    "--endpoint https://minio.storage:9000": "tests/runtime/export/test_s3.py, to a server that it starts",
}
"""Commands that other tests run, and which tests."""


def commands(text: str) -> list[str]:
    """Every command in the shell blocks of a page, in order, without comments and line continuations."""
    return [
        command.partition("  #")[0].strip() for command in _lines(text) if command.partition("#")[0].strip()
    ]


def _lines(text: str) -> Iterator[str]:
    for block in SHELL.findall(text):
        yield from block.replace("\\\n", "").splitlines()
    for block in CONSOLE.findall(text):
        yield from (line[2:] for line in block.splitlines() if line.startswith("$ "))


def reason_not_to_run(command: str) -> str:
    """Why no test runs this command; empty when one does."""
    return next((why for beginning, why in NOT_RUN.items() if command.startswith(beginning)), "")


def is_run_in_scenario(command: str) -> bool:
    """Whether the scenario of its page runs the command as it is written."""
    return not reason_not_to_run(command) and command not in RUN_ELSEWHERE
