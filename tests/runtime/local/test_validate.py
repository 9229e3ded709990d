"""`grpo-runtime validate` and the files it reads."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_hub import FakeHub, serving, use_cache, use_hub
from local_command import job_object
from pod_builder import run_config

from grpo_api.resolve import secrets_of
from grpo_api.source import Volume, VolumeKind
from grpo_api.v1alpha1.job import parse_job
from grpo_runtime.cli import main
from grpo_runtime.errors import UserError
from grpo_runtime.local.describe import crowded
from grpo_runtime.local.documents import pick_job, read_documents
from grpo_runtime.local.volume_folders import lay_out_volumes, parse_volume_flags
from grpo_runtime.model.tiny import write_tiny_model

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def written(folder: Path, *documents: object) -> Path:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return file


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_valid(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(example)]) == 0
    assert ": valid\n  mode " in capsys.readouterr().out


def test_of_a_valid_job_it_says_what_it_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpus = {"limits": {"nvidia.com/gpu": 2}}
    job = job_object(
        trainer={"numNodes": 2, "resources": gpus},
        engine={"tensorParallelSize": 2},
        rollout={"replicas": 3, "resources": {"limits": {"nvidia.com/gpu": 2}}},
        algorithm={"steps": 7, "promptsPerStep": 4, "groupSize": 3},
        dataset={"source": "pvc://data/train.jsonl"},
        checkpoint={"claimName": "mine", "everySteps": 5},
        **{"async": {"maxStaleness": 4, "syncEverySteps": 2}},
    )
    assert main(["validate", str(written(tmp_path, job))]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])
    assert lines["mode"] == "Disaggregated, because spec.mode is Auto and spec.rollout is set"
    assert lines["pods"] == (
        "2 trainer pods with 2 training processes each, 3 rollout pods with one vLLM engine of 2 workers each"
    )
    assert lines["GPUs"] == "10: 4 for training, 6 for rollouts"
    assert lines["weights"] == "to the engines by NCCL, because trainer and engines have GPUs"
    assert lines["steps"] == "7 of 12 samples (4 prompts x 3 completions)"
    assert lines["async"] == (
        "on completions that are at most 4 steps old; engines get weights after every 2 steps"
    )
    assert lines["reads"] == "model builtin://tiny, dataset pvc://data/train.jsonl, claim data"
    assert lines["checkpoints"] == "every 5 steps and at the end, the newest 2 are kept; on claim mine"
    assert lines["locally"].startswith(
        "4 training processes and 3 engines with `grpo-runtime run` on a machine with 10 GPUs; "
    )


def test_a_job_whose_weights_go_by_files_says_where_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_object(weightSync={"disk": {"to": "pvc://weights/copy"}})
    assert main(["validate", str(written(tmp_path, job))]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])
    assert lines["weights"] == (
        "to the engines by Disk through pvc://weights/copy, because spec.weightSync.disk says where weights "
        "are kept"
    )


def test_of_engines_of_several_pods_it_says_how_many_pods_and_gpus_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus = {"limits": {"nvidia.com/gpu": 4}}
    engine = {"tensorParallelSize": 4, "pipelineParallelSize": 2}
    job = job_object(engine=engine, rollout={"replicas": 3, "nodesPerReplica": 2, "resources": gpus})
    assert main(["validate", str(written(tmp_path, job))]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])
    assert lines["pods"].endswith("6 rollout pods with one vLLM engine of 8 workers for every 2")
    assert lines["GPUs"] == "24: 0 for training, 24 for rollouts"


def test_engines_that_fit_into_several_pods_and_not_on_one_machine_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = {"tensorParallelSize": 4, "pipelineParallelSize": 4}
    job = job_object(engine=engine, rollout={"replicas": 1, "nodesPerReplica": 2})
    assert main(["validate", str(written(tmp_path, job))]) == 0
    locally = capsys.readouterr().out.partition("locally")[2]
    assert "not with `grpo-runtime run`: an engine would have 16 workers" in locally
    assert "rollout.nodesPerReplica (2)" in locally


@pytest.mark.parametrize(
    ("engine", "replicas", "fields"),
    [
        ({}, 5, "rollout.replicas"),
        ({"pipelineParallelSize": 5}, 1, "engine.pipelineParallelSize"),
        ({"dataParallelSize": 5, "expertParallel": True}, 1, "engine.dataParallelSize"),
        (
            {"tensorParallelSize": 2, "dataParallelSize": 2, "expertParallel": True},
            2,
            "rollout.replicas or engine.tensorParallelSize or engine.dataParallelSize",
        ),
    ],
)
def test_what_makes_the_workers_more_than_the_cores_is_named(
    engine: dict[str, Any], replicas: int, fields: str
) -> None:
    job = parse_job(job_object(engine=engine, rollout={"replicas": replicas}))
    assert crowded(job, num_cores=4).endswith(f"which is slow: lower {fields}")


@pytest.mark.parametrize(("replicas", "size", "is_crowded"), [(2, 2, False), (1, 4, False), (3, 2, True)])
def test_the_workers_of_all_engines_are_compared_with_the_cores_of_the_machine(
    replicas: int, size: int, is_crowded: bool
) -> None:
    job = parse_job(job_object(engine={"tensorParallelSize": size}, rollout={"replicas": replicas}))
    said = crowded(job, num_cores=4)
    assert bool(said) is is_crowded
    if is_crowded:
        assert said.startswith("3 engines with 6 workers in all share 4 CPU cores, which is slow")


def test_problems_are_named_by_field_for_each_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "metadata": {"name": "c"}}
    wrong = job_object(algorithm={"steps": 0, "groupsize": 4}, model=None)
    file = written(tmp_path, claim, job_object(), wrong)
    assert main(["validate", str(file)]) == 1
    text = capsys.readouterr().out
    assert f"{file}:6: GRPOJob copy: valid" in text
    assert "GRPOJob copy: 3 problems" in text
    assert "  spec.model: Required value" in text
    assert '  spec.algorithm.groupsize: unknown field "spec.algorithm.groupsize"' in text
    assert "spec.algorithm.steps in body should be greater than or equal to 1" in text
    assert "not looked at: PersistentVolumeClaim" in text
    assert "2 jobs, 1 with problems" in text


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            {"model": {"source": "Qwen/Qwen3-0.6B"}},
            'spec.model.source: Invalid value: "string": has no scheme: write hf://Qwen/Qwen3-0.6B for',
        ),
        (
            {"rewards": [{"name": "found", "builtin": "regex", "pattern": "(a"}]},
            'spec.rewards[0].pattern: Invalid value: "string": is no regular expression (missing ), ',
        ),
        (
            {"dataset": {"source": "reasoning-gym://chain_sums"}},
            "reasoning-gym has no task chain_sums: did you mean chain_sum",
        ),
        (
            {"dataset": {"source": "reasoning-gym://chain_sum?min_term=2"}},
            "the task has no setting min_term: did you mean min_terms",
        ),
        (
            {
                "dataset": {
                    "source": "reasoning-gym://chain_sum",
                    "eval": {"everySteps": 5, "source": "reasoning-gym://chain_sums"},
                }
            },
            'spec.dataset.eval.source: Invalid value: "string": dataset.eval: dataset.source '
            "(reasoning-gym://chain_sums): reasoning-gym has no task chain_sums",
        ),
    ],
)
def test_what_the_api_server_cannot_judge_is_a_problem_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, Any], sentence: str
) -> None:
    assert main(["validate", str(written(tmp_path, job_object(**spec)))]) == 1
    text = capsys.readouterr().out
    assert "1 problem\n" in text
    assert sentence in text


def test_a_task_whose_library_only_the_image_may_have_is_valid(tmp_path: Path) -> None:
    job = job_object(dataset={"source": "reasoning-gym://zebra_puzzles?num_people=4"})
    assert main(["validate", str(written(tmp_path, job))]) == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1", "line 1: this is not YAML"),
        ("a: 1\nb: 2\na: 3\n", "line 3: this is not YAML: the key 'a' is there twice"),
        ("kind: Pod\n", "there is no object of kind GRPOJob in it"),
    ],
)
def test_a_file_without_a_job_is_named_with_the_line_of_the_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    assert main(["validate", str(file)]) == 1
    assert sentence in capsys.readouterr().out


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(tmp_path / "no.yaml")]) == 1
    assert f"{tmp_path}/no.yaml cannot be read" in capsys.readouterr().out


def test_it_answers_without_loading_anything_heavy(tmp_path: Path) -> None:
    script = (
        "import sys; from grpo_runtime.cli import main; code = main(sys.argv[1:])\n"
        "heavy = {'torch', 'transformers', 'vllm', 'numpy', 'tqdm', 'aiohttp'} & {*sys.modules}\n"
        "sys.exit(code or ', '.join(heavy) or 0)"
    )
    arguments = [sys.executable, "-c", script, "validate", str(written(tmp_path, job_object()))]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


GPUS = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def test_a_job_that_fits_into_its_gpus_is_valid_and_one_that_does_not_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, job_object(trainer=GPUS))
    assert main(["validate", "--gpu-memory-gib", "4", str(file)]) == 0
    assert "each GPU of role trainer, which fits into 4 GiB\n" in capsys.readouterr().out
    assert main(["validate", "--gpu-memory-gib", "1", str(file)]) == 1
    assert "which does not fit into 1 GiB: " in capsys.readouterr().out
    assert main(["validate", str(file)]) == 0
    table = capsys.readouterr().out
    assert "each GPU of role trainer\n" in table
    assert " GiB activations\n" in table


def test_a_job_whose_pods_have_too_little_memory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def limited(memory: str) -> dict[str, Any]:
        return {"resources": {"limits": {"nvidia.com/gpu": 1, "memory": memory}}}

    assert main(["validate", str(written(tmp_path, job_object(trainer=limited("8Gi"))))]) == 0
    table = capsys.readouterr().out
    assert "the first trainer pod, which fits into its limit of 8.0 GiB\n" in table
    assert " GiB checkpoint, while it is written\n" in table
    assert main(["validate", str(written(tmp_path, job_object(trainer=limited("2Gi"))))]) == 1
    said = "does not fit into its limit of 2.0 GiB: raise memory in trainer.resources.limits to 5Gi\n"
    assert said in capsys.readouterr().out
    assert main(["validate", str(written(tmp_path, job_object(trainer=GPUS)))]) == 0
    assert "which has no memory in trainer.resources.limits\n" in capsys.readouterr().out


def test_a_model_that_is_not_on_this_machine_is_not_planned_and_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, job_object(trainer=GPUS, model={"source": "pvc://models/mine"}))
    assert main(["validate", "--gpu-memory-gib", "1", str(file)]) == 0
    assert (
        "memory       not planned: model.source (pvc://models/mine) is on a volume" in capsys.readouterr().out
    )


def test_of_a_model_of_the_hub_only_the_configuration_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_model(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    hub = FakeHub({("model", "org/tiny"): files})
    use_cache(tmp_path / "cache", monkeypatch)
    file = written(tmp_path, job_object(trainer=GPUS, model={"source": "hf://org/tiny"}))
    with serving(hub) as endpoint:
        use_hub(endpoint, monkeypatch)
        assert main(["validate", "--gpu-memory-gib", "1", str(file)]) == 1
    assert "which does not fit into 1 GiB" in capsys.readouterr().out
    fetched = {path.rpartition("/")[2] for path in hub.asked if "/resolve/" in path}
    assert fetched == {"config.json"}


def test_without_a_network_a_line_says_that_the_memory_is_not_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_cache(tmp_path / "cache", monkeypatch)
    # nobody listens at port 1
    use_hub("http://127.0.0.1:1", monkeypatch)
    file = written(tmp_path, job_object(trainer=GPUS, model={"source": "hf://org/tiny"}))
    assert main(["validate", "--gpu-memory-gib", "1", str(file)]) == 0
    assert "not planned: model.source (hf://org/tiny) is not in the cache" in capsys.readouterr().out


def test_numbers_are_read_as_kubectl_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("{a: 1e-6, b: 1.5E3, c: 12:30, d: 2026-01-01, e: 5, f: -0.5, g: 1_0, h: true, i: 0x10}")
    (found,) = read_documents(file)
    assert found.data == {
        "a": 1e-6, "b": 1500.0, "c": "12:30", "d": "2026-01-01", "e": 5, "f": -0.5, "g": "1_0", "h": True,
        "i": 16,
    }  # fmt: skip


def test_of_several_jobs_one_has_to_be_chosen(tmp_path: Path) -> None:
    other = job_object() | {"metadata": {"name": "other"}}
    file = written(tmp_path, job_object(), other)
    documents = read_documents(file)
    with pytest.raises(UserError, match=r"several GRPOJobs \(copy, other\): choose one with --job NAME"):
        pick_job(documents, path=file)
    assert pick_job(documents, path=file, name="other").data == other
    with pytest.raises(UserError, match="no GRPOJob of the name third"):
        pick_job(documents, path=file, name="third")


def test_volumes_are_links_to_the_folders_given_and_files_for_config_maps_of_the_same_file(
    tmp_path: Path,
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "config.json").write_text("{}")
    config_map = {"kind": "ConfigMap", "metadata": {"name": "rewards"}, "data": {"r.py": "x = 1\n"}}
    documents = read_documents(written(tmp_path, config_map, job_object()))
    needed = [Volume(VolumeKind.CLAIM, "models"), Volume(VolumeKind.CONFIG_MAP, "rewards")]
    into = tmp_path / "volumes"
    for _ in range(2):  # also over the folder of an earlier command
        given = parse_volume_flags([f"claim/models={models}"])
        lay_out_volumes(needed, given=given, documents=documents, into=into)
        assert (into / "claims/models/config.json").read_text() == "{}"
        assert (into / "configmaps/rewards/r.py").read_text() == "x = 1\n"
    assert (models / "config.json").exists()


def test_the_secret_of_a_reward_service_is_a_link_to_a_folder_that_has_to_be_given(tmp_path: Path) -> None:
    folder, into = tmp_path / "access", tmp_path / "volumes"
    folder.mkdir()
    (folder / "Authorization").write_text("Bearer x")
    service = {"url": "http://judge/score", "headersSecret": "judge"}
    needed = secrets_of(run_config(rewards=[{"name": "judge", "service": service}]))
    with pytest.raises(UserError, match=r"reads secret judge: .* --volume secret/judge=DIRECTORY"):
        lay_out_volumes(needed, given={}, documents=[], into=into)
    given = parse_volume_flags([f"secret/judge={folder}"])
    lay_out_volumes(needed, given=given, documents=[], into=into)
    assert (into / "secrets/judge/Authorization").read_text() == "Bearer x"


@pytest.mark.parametrize("flag", ["models=/tmp", "pod/x=/tmp", "claim/x", "claim/=/tmp", "claim/x=/no/such"])
def test_a_volume_flag_that_names_no_folder_is_refused(flag: str) -> None:
    with pytest.raises(UserError, match="--volume"):
        parse_volume_flags([flag])


def test_the_claim_of_weights_is_given_as_any_claim(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    into, needed = tmp_path / "volumes", [Volume(VolumeKind.WEIGHTS, "weights")]
    with pytest.raises(UserError, match="the job writes weights to claim weights: say where it is with"):
        lay_out_volumes(needed, given={}, documents=[], into=into)
    given = parse_volume_flags([f"claim/weights={tmp_path / 'given'}"])
    lay_out_volumes(needed, given=given, documents=[], into=into)
    assert (into / "weights/weights").resolve() == tmp_path / "given"


def test_with_data_it_tells_what_a_trainer_would_find_in_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "claim").mkdir()
    data = tmp_path / "claim" / "train.jsonl"
    job = job_object(
        dataset={"source": "pvc://data/train.jsonl"}, engine={"maxModelLen": 64}, sampling={"maxTokens": 8}
    )
    file = written(tmp_path, job)
    command = ["validate", "--data", "--volume", f"claim/data={tmp_path}/claim", str(file)]
    data.write_text('{"prompt": "a=", "answer": "a"}')
    assert main(command) == 0
    assert "data: 1 prompt for training; the reward functions were called once" in capsys.readouterr().out
    data.write_text('{"prompt": "a=", "answer": {"text": "a"}}')
    assert main(command) == 1
    assert "data: dataset.answer: column answer of row 1 is an object" in capsys.readouterr().out
    assert main(["validate", "--data", str(file)]) == 1
    assert "say where it is with --volume claim/data=DIRECTORY" in capsys.readouterr().out
