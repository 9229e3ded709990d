"""examples/serve-elsewhere: the server reads what the job writes, with options and probes that there are."""

import argparse
from pathlib import Path
from typing import Any

import yaml

from grpo_api.contract.endpoints import ROLLOUT_LIVE_PATH, ROLLOUT_READY_PATH
from grpo_api.contract.weight_sync_choice import backend_of
from grpo_api.v1alpha1.job import parse_job
from grpo_runtime.subcommands.follow import FOLLOW

EXAMPLE = Path(__file__).parents[2] / "examples/serve-elsewhere"


def server() -> dict[str, Any]:
    deployment, _ = yaml.safe_load_all((EXAMPLE / "server.yaml").read_text())
    return dict(deployment["spec"]["template"]["spec"])


def test_the_server_follows_the_place_that_the_job_writes_to():
    spec = parse_job(yaml.safe_load((EXAMPLE / "job.yaml").read_text())).spec
    assert backend_of(spec).backend == "Disk"
    assert spec.weight_sync.disk is not None
    [container] = server()["containers"]
    parser = argparse.ArgumentParser()
    FOLLOW.add_arguments(parser)
    options = parser.parse_args(container["args"])
    assert container["command"] == ["grpo-runtime", "follow"]
    assert (options.source, options.endpoint) == (spec.weight_sync.disk.to, spec.weight_sync.disk.endpoint)
    assert options.engine == ["--served-model-name=copy", f"--max-model-len={spec.engine.max_model_len}"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(options.credentials), str(options.token.parent), str(options.cache.parent)} <= mounts


def test_its_probes_and_volumes_are_there():
    pod = server()
    [container] = pod["containers"]
    paths = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")]
    assert paths == [ROLLOUT_LIVE_PATH, ROLLOUT_LIVE_PATH, ROLLOUT_READY_PATH]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
