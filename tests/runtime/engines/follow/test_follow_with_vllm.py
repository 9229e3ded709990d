"""`grpo-runtime follow` with a real engine: it serves each new version, and leaves out a damaged one."""

import itertools
import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from disk_in_a_folder import JOB
from forks import VLLM_COMMAND, VLLM_SERVER
from pod_builder import free_port
from policy_builder import changed_policy, weights_of
from polling import wait_until
from s3_server import BUCKET, s3_secret, served_bucket
from transformers import PreTrainedModel

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.export.access import S3Location
from grpo_runtime.model.load import load_tokenizer
from grpo_runtime.model.save import files_beside_weights
from grpo_runtime.model.source import LocalModel
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.weight_sync.disk.backend import store_in_bucket
from grpo_runtime.weight_sync.disk.publisher import Publisher
from grpo_runtime.weight_sync.disk.store import FolderStore, VersionStore
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

pytestmark = pytest.mark.engine

TOKEN = "a-token-of-the-tests"
PROMPT = [10, 20, 30, 5]
NUM_TOKENS = 8


class FollowingServer:
    """The command as a process, which follows the store at `source`."""

    def __init__(self, folder: Path, source: str, *options: str) -> None:
        self._folder, self._port = folder, free_port()
        token = folder / "token"
        token.write_text(f"{TOKEN}\n")
        command = ["follow", "--source", source, "--token", str(token), "--host", "127.0.0.1"]
        command += ["--cache", str(folder / "cache"), "--port", str(self._port), "--interval-seconds", "0.2"]
        command += [*options, "--", "--max-model-len", "64"]
        self.process = VLLM_SERVER.start(
            VLLM_COMMAND, *command, environment=os.environ, output=folder / "follow.log"
        )

    def log(self) -> str:
        return (self._folder / "follow.log").read_text()

    def call(self, path: str, body: dict[str, Any] | None = None, *, token: str = TOKEN) -> tuple[str, Any]:
        """The version in the answer's header, and the answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}")
        request.add_header("Authorization", f"Bearer {token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - this machine's
            return answer.headers.get("x-grpo-weight-version", ""), json.load(answer)

    def served(self) -> str | None:
        """The version that it serves; None before it answers."""
        assert self.process.poll() is None, self.log()[-3000:]
        try:
            return self.call("/v1/models")[0]
        except (OSError, urllib.error.URLError):
            return None

    def serves(self, version: str) -> bool:
        return self.served() == version

    def sampled(self) -> list[int]:
        """The tokens that are likeliest after the prompt."""
        model = self.call("/v1/models")[1]["data"][0]["id"]
        body = {"model": model, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0}
        answer = self.call("/v1/completions", {**body, "return_token_ids": True, "ignore_eos": True})[1]
        return list(answer["choices"][0]["token_ids"])

    def refused(self, path: str, *, token: str = TOKEN) -> int:
        with pytest.raises(urllib.error.HTTPError) as refusal:
            self.call(path, token=token)
        return refusal.value.code

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def following(tmp_path: Path, store: Path) -> Iterator[FollowingServer]:
    with started(FollowingServer(tmp_path, f"file://{store}")) as server:
        yield server


@contextmanager
def started(server: FollowingServer) -> Iterator[FollowingServer]:
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def publisher_to(store: VersionStore, model_dir: Path) -> Publisher:
    policy, origin = changed_policy(model_dir, seed=0), LocalModel(model_dir, "builtin://tiny", commit=None)
    return Publisher(
        store,
        job=JOB,
        attempt=1,
        keep=2,
        model_files=lambda: files_beside_weights(
            policy, tokenizer=load_tokenizer(model_dir), dtype=torch.float32, origin=origin
        ),
    )


def publish(publisher: Publisher, policy: PreTrainedModel, *, step: int) -> str:
    copy = HostCopy(weights_of(policy))
    publisher.publish(copy, PolicyVersion(1, step))
    return publisher.published(copy).result(30).name


def likeliest(policy: PreTrainedModel) -> list[int]:
    ids = list(PROMPT)
    for _ in range(NUM_TOKENS):
        with torch.no_grad():
            ids.append(int(policy(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def test_a_server_starts_beside_a_quick_job_follows_it_and_leaves_out_what_is_damaged(
    following: FollowingServer, store: Path, tmp_path: Path
) -> None:
    model_dir = tmp_path / "model"
    write_tiny_model(model_dir)
    policies = {seed: changed_policy(model_dir, seed=seed) for seed in (1, 2, 3, 4)}
    publisher, steps = publisher_to(FolderStore(store), model_dir), itertools.count(1)
    wait_until(lambda: "there is no version yet" in following.log(), "it waits for a version")

    def serves_while_versions_come_and_go() -> bool:
        publish(publisher, policies[1], step=next(steps))
        return following.served() is not None

    wait_until(serves_while_versions_come_and_go, "it serves a version", seconds=120)
    assert next(steps) > 4, "the version that it was started on is still in the store"
    assert following.sampled() == likeliest(policies[1])

    def publish_next(seed: int) -> str:
        step = next(steps)
        publish(publisher, policies[seed], step=step)
        return f"1.{step}"

    version = publish_next(2)
    wait_until(lambda: following.serves(version), "it serves the second weights")
    assert likeliest(policies[2]) != likeliest(policies[1])
    assert following.sampled() == likeliest(policies[2])

    name = publish(
        publisher_to(FolderStore(tmp_path / "elsewhere"), model_dir), policies[3], step=next(steps)
    )
    damaged = tmp_path / "elsewhere" / name / "model.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-5] ^= 1
    damaged.write_bytes(data)
    shutil.move(tmp_path / "elsewhere" / name, store / name)
    FolderStore(store).put("LATEST", f"{name}\n".encode())
    wait_until(lambda: f"weights {name} are left out" in following.log(), "it finds the damage")
    assert following.serves(version)
    assert following.sampled() == likeliest(policies[2])

    newest = publish_next(4)
    wait_until(lambda: following.serves(newest), "it serves the fourth weights")
    assert following.sampled() == likeliest(policies[4])

    assert following.refused("/v1/models", token="another") == 401
    for path in ("/collective_rpc", "/pause", "/tokenize"):
        assert following.refused(path) == 404
    assert TOKEN not in following.log()
    assert following.end() == 143


@pytest.mark.matrix
def test_a_server_follows_a_bucket(tmp_path: Path) -> None:
    model_dir, url, secret = tmp_path / "model", f"s3://{BUCKET}/weights", tmp_path / "secret"
    write_tiny_model(model_dir)
    policies = {step: changed_policy(model_dir, seed=step) for step in (1, 2)}
    with served_bucket(tmp_path / "s3") as s3:
        location = S3Location(url, endpoint=s3.endpoint)
        bucket = store_in_bucket(location, credentials=s3_secret(secret), field="weightSync.disk.to")
        publisher = publisher_to(bucket, model_dir)
        publish(publisher, policies[1], step=1)
        options = ("--endpoint", s3.endpoint, "--credentials", str(secret))
        with started(FollowingServer(tmp_path, url, *options)) as server:
            wait_until(lambda: server.serves("1.1"), "it serves the first version", seconds=120)
            assert server.sampled() == likeliest(policies[1])
            publish(publisher, policies[2], step=2)
            wait_until(lambda: server.serves("1.2"), "it serves the second version")
            assert server.sampled() == likeliest(policies[2])
            assert server.end() == 143
