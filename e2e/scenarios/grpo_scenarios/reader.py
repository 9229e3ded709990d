"""Somebody who follows a page of ours, command by command as it is written."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from grpo_images.sources import REPOSITORY
from grpo_scenarios.world import World

PATIENCE_SECONDS = 900
"""For one command, also one that itself would wait longer; training is the longest."""
RUNTIME_IMAGE = "registry.example.com/my-team/grpo-runtime:0.1.0"
"""As our pages name it."""


@dataclass(frozen=True)
class Reader:
    """Has a folder that looks like a checkout, with examples that may be changed, and a kubeconfig.

    `names` are put in the place of those that stand in a command.
    """

    checkout: Path
    environment: dict[str, str]
    names: dict[str, str]

    @classmethod
    def of_world(cls, world: World, home: Path) -> "Reader":
        """One who works in the world's namespace with the images of the working tree, at `home`."""
        checkout = home / "grpo-operator"
        checkout.mkdir()
        for entry in REPOSITORY.iterdir():
            if entry.name != "examples":
                (checkout / entry.name).symlink_to(entry)
        shutil.copytree(REPOSITORY / "examples", checkout / "examples")
        kubeconfig = home / "kubeconfig"
        shutil.copy(world.target.kubectl[-1], kubeconfig)
        programs = [str(Path(command[0]).parent) for command in (world.target.kubectl, world.target.helm)]
        repository, _, tag = world.target.operator_image.rpartition(":")
        return cls(
            checkout=checkout,
            environment=os.environ
            | {"KUBECONFIG": str(kubeconfig), "PATH": ":".join([*programs, os.environ["PATH"]])},
            names={
                RUNTIME_IMAGE: world.target.runtime_image,
                "registry.example.com/my-team/grpo-operator": repository,
                "image.tag=0.1.0": f"image.tag={tag}",
                "my-team": world.namespace,
            },
        )

    def start(self, command: str) -> subprocess.Popen[str]:
        """Run a command with our names in it."""
        for name, ours in self.names.items():
            command = command.replace(name, ours)
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.checkout, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, command: str) -> str:
        """What it printed."""
        with self.start(command) as process:
            try:
                told, complaints = process.communicate(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0, f"`{command}` failed: {told}{complaints}"
        return told

    def watch(self, command: str, *, until: str) -> str:
        """The first line of an endless command that begins with `until`."""
        with self.start(command) as process:
            assert process.stdout is not None
            try:
                return next(line for line in process.stdout if line.startswith(until))
            finally:
                process.terminate()
