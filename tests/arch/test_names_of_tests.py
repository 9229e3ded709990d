"""A test stands where its module's name leads: who opens a module finds its tests by its name, or by that of
the folder that it belongs to."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("crds/grpo_api", "operator/grpo_operator", "runtime/grpo_runtime")
SHORTEST = 100
"""Lines of a module that is held to this."""
ONLY_DECLARES = ("interface", "types")
"""Stems of modules that others implement."""
TOLD_BY = {
    "crds/grpo_api/contract/run_config.py": "run_sections",
    "crds/grpo_api/rule.py": "bad_specs",
    "crds/grpo_api/source.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/algorithm.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/job_spec.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/resources.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/rewards.py": "bad_specs",
    "operator/grpo_operator/children/frozen_job.py": "children",
    "operator/grpo_operator/plan/draft.py": "plan_events",
    "operator/grpo_operator/plan/facts.py": "conditions",
    "operator/grpo_operator/plan/policies/freeze.py": "plan_start",
    "runtime/grpo_runtime/colocated/child_engine.py": "recovering_engine",
    "runtime/grpo_runtime/colocated/child_process.py": "recovering_engine",
    "runtime/grpo_runtime/colocated/engine_child.py": "recovering_engine",
    "runtime/grpo_runtime/colocated/messages.py": "colocated_engines",
    "runtime/grpo_runtime/data/source.py": "prompts",
    "runtime/grpo_runtime/local/command.py": "local_run",
    "runtime/grpo_runtime/local/describe.py": "validate",
    "runtime/grpo_runtime/local/engine_processes.py": "local_run",
    "runtime/grpo_runtime/local/process_table.py": "environments",
    "runtime/grpo_runtime/local/screen.py": "local_run",
    "runtime/grpo_runtime/local/trainer_attempt.py": "local_run",
    "runtime/grpo_runtime/memory_plan/model_sizes.py": "formulas",
    "runtime/grpo_runtime/process/line_worker.py": "pool",
    "runtime/grpo_runtime/report/prometheus.py": "reports",
    "runtime/grpo_runtime/rewards/service_protocol.py": "reward_service",
    "runtime/grpo_runtime/serve/vllm_cpu_experts.py": "vllm_cores",
    "runtime/grpo_runtime/serve/vllm_server.py": "vllm_cores",
    "runtime/grpo_runtime/supervisor/fork_server.py": "rank_processes",
    "runtime/grpo_runtime/supervisor/one_thread_server.py": "endpoint",
    "runtime/grpo_runtime/trainer/colocation.py": "colocated_job",
    "runtime/grpo_runtime/trainer/leading.py": "trainer_pod",
    "runtime/grpo_runtime/trainer/rank_context.py": "trainer_pod",
    "runtime/grpo_runtime/weight_sync/stream/manifest.py": "host_copy",
}
"""Modules that are tested under the name of what they do with others, and that test."""
TESTS = {
    path.stem.removeprefix("test_")
    for folder in ("tests", "e2e")
    for path in (ROOT / folder).rglob("test_*.py")
}


def modules() -> list[Path]:
    """Those that are held to it, below the root."""
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return sorted(
        path.relative_to(ROOT)
        for path in found
        if path.stem not in ("__init__", *ONLY_DECLARES)
        and len((text := path.read_text()).splitlines()) >= SHORTEST
        and any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(ast.parse(text))
        )
    )


def is_led_to_by(name: str) -> bool:
    """Whether a test begins with this name, or with its first words, or is of a plan and has it."""
    words = name.split("_")
    prefixes = {"_".join(words[:count]) for count in range(2, len(words) + 1)} | {name}
    return any(
        test in prefixes or test.startswith((f"{name}_", f"{name}s_", f"plan_{name}")) or test == f"{name}s"
        for test in TESTS
    )


@pytest.mark.parametrize("module", modules(), ids=str)
def test_a_module_leads_to_its_tests(module: Path) -> None:
    package = next(Path(each) for each in PACKAGES if module.is_relative_to(each))
    folders = module.relative_to(package).parent.parts
    # the first is a part of the product, such as `trainer`, and not one idea
    names = (module.stem, *(f"{folder}_{module.stem}" for folder in folders), *folders[1:])
    if any(is_led_to_by(name) for name in names):
        assert str(module) not in TOLD_BY
    else:
        assert TOLD_BY[str(module)] in TESTS
