"""Runs the commands of a page of our documentation, one by one, as they are written."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from grpo_images.sources import REPOSITORY
from grpo_scenarios.namespace import Namespace

PATIENCE_SECONDS = 900
"""How long one command may take, also one that would itself wait longer. Training takes longest."""
RUNTIME_IMAGE = "registry.example.com/my-team/grpo-runtime:0.2.0"
"""The runtime image, as our pages name it."""


@dataclass(frozen=True)
class Reader:
    """A reader with a kubeconfig and a folder that looks like a checkout, whose examples tests may change.

    Each key of `names` that occurs in a command is replaced by its value.
    """

    checkout: Path
    environment: dict[str, str]
    names: dict[str, str]

    @classmethod
    def in_namespace(cls, namespace: Namespace, home: Path) -> "Reader":
        """A reader in `namespace`, with the images of the working tree and its files below `home`."""
        checkout = home / "grpo-operator"
        checkout.mkdir()
        for entry in REPOSITORY.iterdir():
            if entry.name != "examples":
                (checkout / entry.name).symlink_to(entry)
        shutil.copytree(REPOSITORY / "examples", checkout / "examples")
        kubeconfig = home / "kubeconfig"
        shutil.copy(namespace.target.kubectl[-1], kubeconfig)
        programs = [
            str(Path(command[0]).parent) for command in (namespace.target.kubectl, namespace.target.helm)
        ]
        repository, _, tag = namespace.target.operator_image.rpartition(":")
        return cls(
            checkout=checkout,
            environment=os.environ
            | {"KUBECONFIG": str(kubeconfig), "PATH": ":".join([*programs, os.environ["PATH"]])},
            names={
                RUNTIME_IMAGE: namespace.target.runtime_image,
                "registry.example.com/my-team/grpo-operator": repository,
                "image.tag=0.2.0": f"image.tag={tag}",
                "my-team": namespace.name,
            },
        )

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a command, with our names in it."""
        for name, ours in self.names.items():
            command = command.replace(name, ours)
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.checkout, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, command: str) -> str:
        """Run a command and return what it printed."""
        with self.start(command) as process:
            try:
                output, errors = process.communicate(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0, f"`{command}` failed: {output}{errors}"
        return output

    def watch(self, command: str, *, until: str) -> str:
        """Run an endless command until it prints a line that begins with `until`, and return that line."""
        with self.start(command) as process:
            assert process.stdout is not None
            try:
                return next(line for line in process.stdout if line.startswith(until))
            finally:
                process.terminate()
