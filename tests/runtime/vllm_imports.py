"""Importing this module imports what pods with real engines need, rollout pods and trainers, for `forks`."""

import os

from grpo_runtime.engines.registry import engine_kind

_KIND = engine_kind()
# as every such pod does before it imports torch
os.environ.update(_KIND.environment())
_KIND.import_colocated()

import imports_of_ranks  # noqa: E402, F401

import grpo_runtime.cli  # noqa: E402
import grpo_runtime.engines.fleet.fleet  # noqa: E402
import grpo_runtime.engines.serve.main  # noqa: E402
import grpo_runtime.engines.vllm.server  # noqa: E402
import grpo_runtime.weight_sync.backend_of_run  # noqa: E402, F401
