"""The parts of a pod in the GRPOJob are those of the API that a real API server describes."""

import ast
import json
from pathlib import Path

import pytest

from grpo_api.core_v1 import generate, types
from grpo_api.v1alpha1.spec.pod_template import PodContainer, PodSettings, PodVolume

from .api_server import Kubectl

pytestmark = pytest.mark.apiserver


@pytest.fixture(scope="module")
def definitions(kubectl: Kubectl) -> dict:
    return json.loads(kubectl.run("get", "--raw", "/openapi/v3/api/v1"))


def test_the_generated_models_are_those_of_the_servers_definition(definitions: dict) -> None:
    made, written = generate.module(definitions), Path(types.__file__).read_text()
    assert ast.dump(ast.parse(made)) == ast.dump(ast.parse(written)), "run generate.py, as it says"


@pytest.mark.parametrize(
    ("model", "kind"), [(PodSettings, "PodSpec"), (PodContainer, "Container"), (PodVolume, "Volume")]
)
def test_every_field_of_podtemplate_is_one_of_the_api(model: type, kind: str, definitions: dict) -> None:
    fields = definitions["components"]["schemas"][f"io.k8s.api.core.v1.{kind}"]["properties"]
    assert {field.alias for field in model.model_fields.values()} <= set(fields)
