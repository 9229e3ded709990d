"""Fields beside the basic ones arrive on pods: two trainer pods, which start and restart together, losses, a
reference, an evaluation, a reward service with a Secret, completions of several turns.

The first two tests share a job and run in the order they are written in.
"""

import re
from pathlib import Path

import pytest
import yaml

from grpo_demo.follow import condition
from grpo_runtime.report.samples import read_groups
from grpo_scenarios.bare_pod import NAME_LABEL, bare_pod
from grpo_scenarios.judge_model import write_judge
from grpo_scenarios.namespace import Namespace, Object, copy_job, volume_claim

pytestmark = pytest.mark.cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator"
JUDGE, PORT, TOKEN = "judge", 8000, "a-token-of-the-tests"
SERVE = f"""
import json
from http.server import BaseHTTPRequestHandler, HTTPServer

class Judge(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_known = self.headers["Authorization"] == "Bearer {TOKEN}"
        rewards = [text.count("a") for text in asked["completions"]]
        body = json.dumps({{"rewards": rewards}}).encode()
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

HTTPServer(("", {PORT}), Judge).serve_forever()
"""
STEPS = 24
"""Of 16 prompts each, which are all that the copy task has."""
CLAIM = "fields"


def judge(image: str) -> list[Object]:
    """A reward service that counts the letter a for those who have the token."""
    return [
        bare_pod(JUDGE, ["python", "-c", SERVE], image=image),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": JUDGE},
            "spec": {"selector": {NAME_LABEL: JUDGE}, "ports": [{"port": PORT}]},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "judge-access"},
            "stringData": {"Authorization": f"Bearer {TOKEN}"},
        },
    ]


@pytest.fixture(scope="module")
def job(namespace: Namespace) -> str:
    """On two trainer pods, with losses, a reference, an evaluation and a service."""
    name = "fields"
    wanted = copy_job(
        name,
        claim=CLAIM,
        dataset={"eval": {"source": "builtin://reverse", "everySteps": 6, "maxPrompts": 8}},
        algorithm={
            "lossType": "cispo",
            "minibatches": 2,
            "entropy": {"coefficient": 0.01},
            "kl": {"beta": 0.02, "refSync": {"everySteps": 4}},
        },
        sampling={"topP": 0.9},
        trainer={"numNodes": 2, "processesPerNode": 1},
        rollout={"replicas": 1},
    )
    del wanted["spec"]["algorithm"]["steps"]
    wanted["spec"]["algorithm"]["epochs"] = STEPS
    service = {"url": f"http://{JUDGE}:{PORT}/score", "headersSecret": "judge-access"}
    wanted["spec"]["rewards"].append({"name": JUDGE, "service": service, "maxFailureShare": 0, "weight": 0.1})
    namespace.apply(volume_claim(CLAIM), *judge(namespace.target.runtime_image), wanted)
    return name


def uids(namespace: Namespace, job: str, role: str) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in namespace.pods_of(job, role)}


def test_two_trainer_pods_train_together_and_the_loss_of_one_restarts_both(
    job: str, namespace: Namespace
) -> None:
    namespace.wait_for_step(job, 3)
    first = uids(namespace, job, "trainer")
    assert len(first) == 2 and namespace.status(job)["trainer"]["summary"] == "2/2"
    engines = uids(namespace, job, "rollout")
    assert len(engines) == 1

    namespace.delete_pod(next(name for name in first if name.endswith("-1")), is_graceful=False)
    namespace.wait_until(lambda: namespace.status(job)["attempt"] == 2, "attempt 2", timeout_seconds=90)
    namespace.wait_until(
        lambda: len(uids(namespace, job, "trainer")) == 2, "two new trainer pods", timeout_seconds=90
    )
    assert not set(uids(namespace, job, "trainer").values()) & set(first.values())
    # The engine outlives the trainers: it is not made again for them.
    assert uids(namespace, job, "rollout") == engines

    status = namespace.wait_for_finish(job)
    assert condition(namespace.job(job), "Complete") == "True", namespace.describe()
    assert (status["restarts"], status["disruptions"]) == (0, 1)


def test_losses_a_reference_an_evaluation_and_a_service_are_those_of_the_job(
    job: str, namespace: Namespace
) -> None:
    status = namespace.wait_for_finish(job)
    assert status["progress"] == f"{STEPS}/{STEPS}"
    steps = [record.values for record in namespace.metrics(CLAIM)]
    assert len(steps) == STEPS
    assert {values["rewards/judge/failures"] for values in steps} == {0}
    # a policy that has learned for longer may write no other letter, or never that one
    assert all(0 < values["rewards/judge/mean"] < 4 for values in steps[:6])
    assert {values["entropy_coef"] for values in steps} == {0.01}
    # the second minibatch of the first step has left the reference by one update
    assert all(values["kl"] > 0 for values in steps) and steps[0]["kl"] < 0.01
    evaluated = [number for number, values in enumerate(steps, 1) if "eval/reward" in values]
    assert evaluated == list(range(6, STEPS + 1, 6))
    assert TOKEN not in namespace.describe() + str(namespace.job(job))


@pytest.mark.matrix
def test_completions_of_several_turns_are_made_by_the_function_in_a_config_map(namespace: Namespace) -> None:
    files = [f"--from-file={EXAMPLE / name}" for name in ("calculator.py", "train.jsonl")]
    namespace.kubectl("create", "configmap", "calculator", *files)
    job = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    job["spec"]["algorithm"] |= {"steps": 4, "dynamicSampling": {"maxRounds": 2}}
    job["spec"] |= {"checkpoint": {"claimName": "turns"}, "report": {"samplesEverySteps": 1}}
    namespace.apply(volume_claim("turns"), job)
    namespace.wait_for_finish("calculator")

    assert condition(namespace.job("calculator"), "Complete") == "True", namespace.describe()
    steps = [record.values for record in namespace.metrics("turns")]
    assert len(steps) == 4
    assert all(1 <= values["dynamic_sampling/rounds"] <= 2 for values in steps)
    folder = namespace.output_folder("turns")
    said = [
        sample.completion
        for step in range(1, 5)
        for group in read_groups(folder, step=step)
        for sample in group
    ]
    # results of the calculator, or a question mark for what is no expression
    assert any(re.search(r"=(-?[0-9]|\?)", text) for text in said)


THIEF = """
import os
from pathlib import Path

async def agent(client, prompt):
    await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": prompt}])
    tokens = [path for path in Path(os.environ["GRPO_TOKENS_DIR"]).iterdir() if path.is_file()]
    assert tokens
    return sum(map(can_read, [*tokens, Path(f"/proc/{os.getppid()}/environ")]))

def can_read(path):
    try:
        return bool(path.read_bytes())
    except OSError:
        return False
"""


@pytest.mark.matrix
def test_agents_of_several_workers_read_no_secret_of_their_pod(namespace: Namespace, tmp_path: Path) -> None:
    (tmp_path / "thief.py").write_text(THIEF)
    namespace.kubectl("create", "configmap", "thief", f"--from-file={tmp_path / 'thief.py'}")
    job = copy_job("thief", claim="thief", algorithm={"steps": 2}, rollout={"replicas": 1})
    job["spec"]["environments"] = [
        {
            "name": "thief",
            "configMap": {"name": "thief", "key": "thief.py", "function": "agent"},
            "workers": 2,
        }
    ]
    job["spec"]["sampling"] = job["spec"].get("sampling", {}) | {
        "chatTemplate": "{% for message in messages %}{{ message.content }}{% endfor %}"
    }
    job["spec"]["rewards"].append({"name": "stolen", "builtin": "environment"})
    namespace.apply(volume_claim("thief"), job)
    namespace.wait_for_finish("thief")

    assert condition(namespace.job("thief"), "Complete") == "True", namespace.describe()
    steps = [record.values for record in namespace.metrics("thief")]
    assert [values["rewards/stolen/mean"] for values in steps] == [0, 0]


@pytest.mark.matrix
def test_a_reward_model_on_a_claim_and_tasks_that_are_made_score_a_run_and_its_evaluations(
    namespace: Namespace,
) -> None:
    # the first job binds the claim, in whose folder a model can then be put
    namespace.apply(volume_claim("judges"), copy_job("before", claim="judges", algorithm={"steps": 1}))
    namespace.wait_for_finish("before")
    write_judge(namespace.claim_folder("judges") / "judge")
    job = copy_job(
        "judged",
        claim="judged",
        dataset={
            "source": "reasoning-gym://chain_sum?min_terms=2&max_terms=2&size=32",
            "eval": {"source": "reasoning-gym://gcd?size=8", "everySteps": 2, "maxPrompts": 8},
        },
        algorithm={"steps": 4},
        engine={"maxModelLen": 256},
        trainer={"processesPerNode": 1},
        rollout={"replicas": 1},
    )
    job["spec"]["rewards"] = [
        {"name": "task", "builtin": "reasoning_gym"},
        {"name": "judge", "model": {"source": "pvc://judges/judge"}, "weight": 0.5},
    ]
    namespace.apply(volume_claim("judged"), job)
    namespace.wait_for_finish("judged")

    assert condition(namespace.job("judged"), "Complete") == "True", namespace.describe()
    steps = [record.values for record in namespace.metrics("judged")]
    assert len(steps) == 4
    # logits of a random model differ, and no completion is without one
    assert all(values["rewards/judge/std"] > 0 == values["rewards/judge/failed_calls"] for values in steps)
    evaluated = [number for number, values in enumerate(steps, 1) if "eval/rewards/judge/mean" in values]
    assert evaluated == [2, 4]
    assert all(0 <= steps[number - 1]["eval/rewards/task/mean"] <= 1 for number in evaluated)


@pytest.mark.matrix
def test_engines_are_sent_what_changed(namespace: Namespace) -> None:
    job = copy_job(
        "sparse",
        claim="sparse",
        model={"dtype": "bfloat16"},
        algorithm={"steps": 8, "optimizer": {"learningRate": 1e-6}},
        trainer={"processesPerNode": 1},
        rollout={"replicas": 1},
        weightSync={"backend": "Gloo", "sparse": {"fullEverySteps": 4}},
    )
    namespace.apply(volume_claim("sparse"), job)
    namespace.wait_for_finish("sparse")

    assert condition(namespace.job("sparse"), "Complete") == "True", namespace.describe()
    steps = [record.values for record in namespace.metrics("sparse")]
    shares = [values["sync/update_ratio"] for values in steps]
    assert sum(share == 1 for share in shares) >= 2, shares
    assert min(shares) < 0.2, shares
    assert max(values.get("sync/max_probe_error", 0) for values in steps) < 0.1
