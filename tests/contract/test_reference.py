"""docs/reference.md says what the code says: nothing is missing, nothing is made up."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

import grpo_operator
import grpo_runtime
import grpo_runtime.engines.fleet.engine_sync
import grpo_runtime.rollouts.stream
import grpo_runtime.trainer.loop
from grpo_api.contract import endpoints, exit_codes, labels, learning_signal
from grpo_api.contract.left_out import LEFT_OUT_IN_A_ROW
from grpo_api.contract.progress import QUEUED, RUNNING, STALENESS
from grpo_api.contract.reasons import Reason
from grpo_api.contract.versions import PolicyVersion
from grpo_api.judge import attempts
from grpo_api.resolve import resolve_algorithm
from grpo_api.v1alpha1.job import GROUP
from grpo_api.v1alpha1.spec import (
    AlgorithmSpec,
    GeometricMaskSpec,
    KLSpec,
    LossType,
    RatioLevel,
    TrustRegionMaskSpec,
)
from grpo_api.v1alpha1.status import ConditionType
from grpo_runtime.algorithm.advantages import compute_advantages, reward_metrics
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.types import AdvantageOptions, Denominators, LossInputs
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.engines.colocated.rank_engine import PHASES
from grpo_runtime.engines.routes import ROUTES, Access
from grpo_runtime.report.metrics import (
    METRICS,
    completion_metrics,
    environment_metrics,
    environment_rewards,
    is_own_metric,
    sync_metrics,
)
from grpo_runtime.report.overlap import IdleEngines, wait_metrics
from grpo_runtime.rollouts import async_stream
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import (
    AgentCalls,
    AgentTurn,
    GenerateRequest,
    Recomputed,
    Rollout,
    SyncReport,
)
from grpo_runtime.rollouts.journal.journal import CHECKSUM, DIFFERS, REPLAYED
from grpo_runtime.rollouts.stream import FILTERED, GENERATED, GENERATED_REWARD, ROUNDS
from grpo_runtime.trainer.algorithm_options import loss_options
from grpo_runtime.trainer.batch import make_batch
from grpo_runtime.trainer.checkpoint import saver
from grpo_runtime.trainer.evaluation import FAILED, OF_COMPLETIONS, PREFIX, REWARD
from grpo_runtime.trainer.evaluation import GIVEN_UP as EVALUATION_GIVEN_UP
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.loop import Coordinator
from grpo_runtime.trainer.micro_batches import divide_step
from grpo_runtime.trainer.step_report import GIVEN_UP, LEFT_OUT, step_metrics
from grpo_runtime.trainer.training_prompts import OVERLONG, UNREADABLE

from .reference_tables import PAGE, PLUGIN, rewritten, with_what_to_do

TEXT = PAGE.read_text()
SOURCES = [
    path
    for package in (grpo_operator, grpo_runtime)
    for path in sorted(Path(package.__file__).parent.rglob("*.py"))
]
GIVEN_FIRST = {"ReasonMessage", "reason_message"}
"""Calls whose first argument is a reason."""
GIVEN_SECOND = {"ConditionState"}
"""Calls whose second argument is a reason."""
PHASE = re.compile(r'\b(?:watch\.phase|phases\.(?:each|unlimited|together))\("(\w+)"')


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(title: str) -> list[str]:
    """What stands in backticks at the beginning of the rows of a section's tables."""
    return re.findall(r"^\| `([^`]+)` \|", section(title), re.MULTILINE)


def test_the_generated_tables_are_fresh() -> None:
    assert rewritten(TEXT) == TEXT, "run `make generate` and read the diff"
    plugin = PLUGIN.read_text()
    assert with_what_to_do(plugin) == plugin, "run `make generate` and read the diff"


def test_every_condition_is_explained() -> None:
    explained = re.findall(
        r"^\| `(\w+)` \| [^`]",
        section("Status").partition("| condition |")[2].partition("\n### ")[0],
        re.MULTILINE,
    )
    assert sorted(explained) == sorted(kind.value for kind in ConditionType)


def test_every_reason_of_ours_is_given_somewhere():
    modules = (exit_codes, learning_signal, attempts)
    sources = [*SOURCES, *(Path(module.__file__) for module in modules)]
    given = {
        node.attr
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Reason"
    }
    assert sorted(given) == sorted(Reason.__members__)


def test_no_reason_is_given_as_text():
    """Ours are members of Reason, and those of Kubernetes are constants with a name."""
    given = {path.name: texts_given_as_reasons(ast.parse(path.read_text())) for path in SOURCES}
    assert {name: texts for name, texts in given.items() if texts} == {}


def test_a_reason_given_as_text_is_found_wherever_it_may_stand():
    tree = ast.parse(
        """
ReasonMessage("A", "a message")
ConditionState(False, "B")
LastFailure(reason="C")
def why(): return "D", "a message"
class Error: reason = "E"
"""
    )
    assert texts_given_as_reasons(tree) == set("ABCDE")


def texts_given_as_reasons(tree: ast.AST) -> set[str]:
    return {str(found.value) for found in reasons_in(tree) if isinstance(found, ast.Constant) and found.value}


def reasons_in(tree: ast.AST) -> Iterator[ast.expr]:
    """What is given as a reason: in calls, in (reason, message) pairs and as the reason of a class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "reason")
            yield from node.args[:1] if name in GIVEN_FIRST else ()
            yield from node.args[1:2] if name in GIVEN_SECOND else ()
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and node.value.elts:
            first = node.value.elts[0]
            text = first.value if isinstance(first, ast.Constant) else None
            yield from [first] if isinstance(text, str) and text[:1].isupper() else ()
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "reason":
            yield node.value


def test_every_label_is_explained() -> None:
    known = {
        value for value in vars(labels).values() if isinstance(value, str) and re.search(r"\w/\w", value)
    }
    written = {value for value in known if value.startswith((f"{GROUP}/", "app.kubernetes.io/"))}
    assert sorted(first_cells("Labels")) == sorted(written)


def test_every_path_is_explained_with_its_port_and_who_may_call_it() -> None:
    rows = re.findall(
        r"^\| (\w+) \| `(\d+)` \| (?:`([^`]+)` )?\| ([^|]+) \|", section("Ports and paths"), re.MULTILINE
    )
    trainer = {(int(port), path) for role, port, path, _ in rows if role == "trainer"}
    reports = (
        *(endpoints.PROGRESS_PATH, endpoints.METRICS_PATH),
        *(endpoints.TRAINER_HEALTH_PATH, endpoints.POSITIONS_PATH),
        *(endpoints.REPORT_PATH, endpoints.SAMPLES_PATH),
    )
    assert trainer == {(endpoints.TRAINER_PORT, path) for path in reports} | {(endpoints.RENDEZVOUS_PORT, "")}

    engine = {
        path: who
        for role, port, path, who in rows
        if role == "rollout" and int(port) == endpoints.ROLLOUT_PORT
    }
    words = {Access.OPEN: "anyone", Access.DATA: "the data token", Access.ADMIN: "the admin token"}
    wanted = {path: words[access] for (_, path), access in ROUTES.items()}
    assert engine.keys() == wanted.keys()
    assert all(engine[path].startswith(who) for path, who in wanted.items())


def test_every_metric_is_explained() -> None:
    assert sorted(METRICS) == sorted(metric_names())
    assert [name for name, meaning in METRICS.items() if not meaning] == []


def test_every_metric_of_a_run_has_a_name_that_functions_may_not_log() -> None:
    others = {"rewards/mine/mean", "eval/rewards/mine/mean", "sync/later_phase_seconds", "time"}
    assert [name for name in (*METRICS, *others) if not is_own_metric(name)] == []
    assert not is_own_metric("own/solved")


def test_a_metric_that_the_trainer_gives_by_its_name_is_found() -> None:
    source = """
def step_metrics(values):
    values["by/assignment"] = values["read"]
    return {**values, "in/a_dict": 1.0}
"""
    assert named_in(source) == {"by/assignment", "in/a_dict"}


def metric_names() -> set[str]:
    """Every metric a run reports with a reward function NAME."""
    return {
        *learned(),
        *divided(),
        *scored(),
        *completion_metrics([rollout()]),
        *environment_metrics([group()], environment=lambda _: "NAME"),
        *environment_rewards([episode()], [1.0]),
        *sync_metrics(SYNC),
        *asynchronous(),
        *(
            f"sync/{phase}_seconds"
            for phase in [
                "pack",
                "write",
                *phases_in(grpo_runtime.engines.fleet.engine_sync.__file__),
                *PHASES,
            ]
        ),
        *(f"time/{phase}_seconds" for phase in phases_in(grpo_runtime.trainer.loop.__file__)),
        *(f"time/{phase}_seconds" for phase in phases_in(grpo_runtime.rollouts.stream.__file__)),
        *(ROUNDS, GENERATED, FILTERED, GENERATED_REWARD),
        *(
            name
            for part in (step_metrics, Learner, Coordinator)
            for name in named_in(inspect.getsource(part))
        ),
        "step_time",
        *(GIVEN_UP, LEFT_OUT, LEFT_OUT_IN_A_ROW.format("NAME"), EVALUATION_GIVEN_UP),
        *(f"{learning_signal.PREFIX}{lack}" for lack in learning_signal.Lack),
        *(saver.WAITED, saver.SECONDS),
        *("rewards/NAME/failures", "rewards/NAME/failed_calls", "step", "total_steps", "attempt"),
        *(REPLAYED, CHECKSUM, DIFFERS, OVERLONG, UNREADABLE),
        *evaluated(),
        *(f"engines/{name}" for name in ("desired", "known", "current", "hung")),
    }


def named_in(source: str) -> set[str]:
    """The metrics that a function or a class gives by their names: keys of dicts, and of what is assigned."""
    nodes = list(ast.walk(ast.parse(source)))
    keys = [key for node in nodes if isinstance(node, ast.Dict) for key in node.keys]
    keys += [
        node.slice for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    ]
    return {str(key.value) for key in keys if isinstance(key, ast.Constant)}


def asynchronous() -> set[str]:
    """What a step of asynchronous training reports besides."""
    idle = IdleEngines({"a": 0.5}, num_engines=1, recomputed=Recomputed())
    return {
        *(f"{STALENESS}/{statistic}" for statistic in ("mean", "max")),
        *(QUEUED, RUNNING, async_stream.FAILED, async_stream.DROPPED),
        f"{async_stream.GROUPS_BY_STALENESS}/NAME",
        *wait_metrics({"step_time": 1.0}, idle=idle, num_tokens=1),
    }


def evaluated() -> set[str]:
    """What an evaluation reports."""
    return {
        *(REWARD, FAILED, f"{PREFIX}rewards/NAME/mean"),
        *(f"{PREFIX}{name}" for name in (*OF_COMPLETIONS, *environment_rewards([episode()], [1.0]))),
    }


SYNC = SyncReport(
    version=PolicyVersion(attempt=1, step=0),
    synced=(),
    failed={},
    num_bytes=1,
    num_bytes_sent=1,
    num_update_bytes=1,
    phase_seconds={"transfer": 1.0},
    paused_seconds=1.0,
)


def phases_in(file: str) -> list[str]:
    found = PHASE.findall(Path(file).read_text())
    assert found
    return found


def rollout() -> Rollout:
    return Rollout(
        prompt_ids=(1,),
        completion_ids=(2,),
        rollout_logprobs=(0.0,),
        versions=(),
        is_terminated=True,
        engine="",
    )


def episode() -> Rollout:
    turn = AgentTurn(sequence=0, start=0, end=1, seconds=0.0, waited_seconds=0.0)
    calls = AgentCalls(environment="NAME", turns=[turn], overridden={"FIELD": 1}, failures={"KIND": 1})
    return replace(rollout(), calls=calls)


def group() -> Group:
    prompt = Prompt(index=0, content="", columns={})
    requests = [GenerateRequest((1,), seed=0)]
    return Group(step=0, number=0, prompt=prompt, requests=requests, rollouts=[episode()])


def divided() -> set[str]:
    """What a step reports about how it was cut."""
    batch = make_batch([rollout()], group_sizes=[1], advantages=torch.tensor([1.0]), pad_id=0)
    options = loss_options(resolve_algorithm(AlgorithmSpec(steps=1)))
    return set(divide_step(batch, options=options, rank=0, num_ranks=1, budget=2).metrics)


def learned() -> set[str]:
    """What every loss reports, with a penalty and with masks."""
    mask = torch.ones((2, 3), dtype=torch.bool)
    inputs = LossInputs(
        trainer_logprobs=torch.zeros((2, 3)),
        rollout_logprobs=torch.zeros((2, 3)),
        ref_logprobs=torch.zeros((2, 3)),
        advantages=torch.tensor([1.0, -1.0]),
        loss_mask=mask,
        entropies=torch.zeros((2, 3)),
    )
    names: set[str] = set()
    for loss in LossType:
        algorithm = resolve_algorithm(
            AlgorithmSpec(
                steps=1,
                loss_type=loss,
                kl=KLSpec(beta=0.1),
                ratio_level=RatioLevel.TOKEN,
                geometric_mask=GeometricMaskSpec(),
                trust_region_mask=TrustRegionMaskSpec(),
            )
        )
        options = loss_options(algorithm, max_completion_length=3)
        names |= set(compute_loss(inputs, options=options, denominators=Denominators.of_mask(mask)).metrics)
    return names


def scored() -> set[str]:
    rewards = torch.tensor([[0.0], [1.0]])
    advantages = compute_advantages(rewards, options=AdvantageOptions(group_size=2, weights=(1.0,)))
    return set(reward_metrics(rewards, names=["NAME"], advantages=advantages))
