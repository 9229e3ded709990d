"""A test stands where its module's name leads: who opens a module finds its tests by its name, or by that of
its folder, among the tests of its part."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = {
    "crds/grpo_api": ("tests/api", "tests/contract"),
    "operator/grpo_operator": ("tests/operator", "tests/apiserver"),
    "runtime/grpo_runtime": ("tests/runtime/{part}", "tests/contract"),
}
"""Packages, and where their tests are; a part of the runtime is its first folder."""
SHORTEST = 100
"""Lines of a module that is held to this."""
ONLY_DECLARES = ("interface", "types")
"""Stems of modules that others implement."""
TESTED_BY = {
    "crds/grpo_api/changes.py": "fixed_fields",
    "crds/grpo_api/contract/progress.py": "contract",
    "crds/grpo_api/contract/reasons.py": "judge_causes",
    "crds/grpo_api/contract/run_config.py": "run_sections",
    "crds/grpo_api/core_v1/generate.py": "core_v1",
    "crds/grpo_api/crd.py": "schema_of_the_crd",
    "crds/grpo_api/model.py": "problems",
    "crds/grpo_api/rule.py": "bad_specs",
    "crds/grpo_api/source.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/algorithm.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/asynchronous.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/colocated.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/engine.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/environments.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/job_spec.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/model.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/pod_template.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/resources.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/rewards.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/sampling.py": "bad_specs",
    "crds/grpo_api/v1alpha1/spec/trainer.py": "bad_specs",
    "operator/grpo_operator/children/config.py": "children",
    "operator/grpo_operator/children/snapshot.py": "children",
    "operator/grpo_operator/children/trainer.py": "children",
    "operator/grpo_operator/plan/causes.py": "plan_failure",
    "operator/grpo_operator/plan/draft.py": "plan_events",
    "operator/grpo_operator/plan/facts.py": "conditions",
    "operator/grpo_operator/plan/policies/snapshot.py": "plan_start",
    "operator/grpo_operator/plan/policies/trainer.py": "plan_restarts",
    "runtime/grpo_runtime/errors.py": "failure",
    "runtime/grpo_runtime/export/hub.py": "upload",
    "runtime/grpo_runtime/gateway/answers.py": "server",
    "runtime/grpo_runtime/gateway/chat_request.py": "server",
    "runtime/grpo_runtime/local/command.py": "local_run",
    "runtime/grpo_runtime/local/describe.py": "validate",
    "runtime/grpo_runtime/local/documents.py": "validate",
    "runtime/grpo_runtime/local/job.py": "local_run",
    "runtime/grpo_runtime/local/memory.py": "validate",
    "runtime/grpo_runtime/local/process_table.py": "environments",
    "runtime/grpo_runtime/local/trainer_attempt.py": "local_run",
    "runtime/grpo_runtime/memory_plan/model_sizes.py": "formulas",
    "runtime/grpo_runtime/report/progress.py": "position",
    "runtime/grpo_runtime/report/prometheus.py": "reports",
    "runtime/grpo_runtime/report/samples_text.py": "samples",
    "runtime/grpo_runtime/rollouts/agents/script.py": "trial",
    "runtime/grpo_runtime/rollouts/agents/worker.py": "kinds",
    "runtime/grpo_runtime/rollouts/frames.py": "journal_file",
    "runtime/grpo_runtime/subcommands/results.py": "cli",
    "runtime/grpo_runtime/supervisor/fork_server.py": "rank_processes",
    "runtime/grpo_runtime/supervisor/page_process.py": "pages",
    "runtime/grpo_runtime/trainer/colocation.py": "colocated_job",
    "runtime/grpo_runtime/trainer/following.py": "other_ranks",
    "runtime/grpo_runtime/trainer/leading.py": "trainer_pod",
    "runtime/grpo_runtime/trainer/rank_context.py": "trainer_pod",
    "runtime/grpo_runtime/weight_sync/disk/version_reader.py": "version_writer",
    "runtime/grpo_runtime/weight_sync/in_process.py": "backend_contract",
    "runtime/grpo_runtime/weight_sync/sender.py": "lagging_engines",
    "runtime/grpo_runtime/weight_sync/shared_memory.py": "backend_contract",
    "runtime/grpo_runtime/weight_sync/stream/manifest.py": "host_copy",
    "runtime/grpo_runtime/weight_sync/stream/memory.py": "host_copy",
}
"""Modules that are tested under the name of what they do with others, and that test."""
ALL_TESTS = {path.stem.removeprefix("test_") for path in (ROOT / "tests").rglob("test_*.py")}


def long_modules() -> list[Path]:
    """Those that are held to it, below the root."""
    found = [path for package in PARTS for path in (ROOT / package).rglob("*.py")]
    return sorted(
        path.relative_to(ROOT)
        for path in found
        if path.stem not in ("__init__", *ONLY_DECLARES)
        and len((text := path.read_text()).splitlines()) >= SHORTEST
        and any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(ast.parse(text))
        )
    )


def names_of_tests_for(module: Path) -> set[str]:
    """The names of all tests where those of a module stand."""
    package, inside = place_of(module)
    folders = [ROOT / folder.format(part=inside.parts[0]) for folder in PARTS[package]]
    return {path.stem.removeprefix("test_") for folder in folders for path in folder.rglob("test_*.py")}


def place_of(module: Path) -> tuple[str, Path]:
    """Its package, and where it is inside of that."""
    package = next(each for each in PARTS if module.is_relative_to(each))
    return package, module.relative_to(package)


def leads_to(module: Path, test: str) -> bool:
    """Whether a test is called as a module, or as a folder within a part, perhaps with more words behind."""
    stem, folder = module.stem, module.parent.name
    names = {stem, f"{stem}s", f"{folder}_{stem}", f"plan_{stem}"}
    _, inside = place_of(module)
    has_folder_in_its_part = len(inside.parent.parts) > 1
    if has_folder_in_its_part:
        names.add(folder)
    return any(test == name or test.startswith(f"{name}_") for name in names)


@pytest.mark.parametrize("module", long_modules(), ids=str)
def test_a_module_leads_to_its_tests(module: Path) -> None:
    tests = names_of_tests_for(module)
    if any(leads_to(module, test) for test in tests):
        assert str(module) not in TESTED_BY, "it has a test of its name: remove it from TESTED_BY"
    else:
        told_by = TESTED_BY.get(str(module))
        assert told_by in ALL_TESTS, (
            f"no test is called as {module}: add test_{module.stem}.py, or a row in TESTED_BY"
        )


def test_what_is_listed_is_a_long_module() -> None:
    assert set(TESTED_BY) <= set(map(str, long_modules()))
