"""vLLM's server behind its guard. It has options of its own."""

import argparse

HELP = "serve one rollout engine (vLLM); --help for its options"
DESCRIPTION = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None: `serve.main` reads all of them, its --help included."""


def execute(options: argparse.Namespace) -> int:
    """Run it; returns the exit code."""
    from grpo_runtime.engines.serve.main import main as serve

    return serve(options.rest)
