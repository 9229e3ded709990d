"""The generated CRD is fresh, complete, bounded and described. Tests on a real API server check the rest."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import Field

from grpo_api.crd import chart_template, crd, generated_files, main
from grpo_api.model import ApiModel
from grpo_api.schema import SchemaError, structural_schema
from grpo_api.v1alpha1.job import GRPOJob

from ..api.every_rule import every_rule, every_text_rule

ROOT = Path(__file__).parents[2]
VERSION = crd()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def fields_below(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields_below(field, f"{path}.{name}")
    for key, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if key in schema:
            yield f"{path}{suffix}", schema[key]
            yield from fields_below(schema[key], f"{path}{suffix}")


SPEC_AND_STATUS = [
    *fields_below(SCHEMA["properties"]["spec"], "spec"),
    *fields_below(SCHEMA["properties"]["status"], "status"),
]


OF_KUBERNETES = re.compile(
    r"spec\.(trainer|rollout)\.podTemplate\."
    r"(spec\.affinity\.|spec\.(tolerations|topologySpreadConstraints|resourceClaims)\[\]"
    r"|spec\.volumes\[\]\.(persistentVolumeClaim|configMap|secret|emptyDir|csi)\."
    r"|container\.(env|envFrom|volumeMounts)\[\])"
)
"""Parts of a pod, whose descriptions are in the documentation of Kubernetes and would fill the CRD."""


@pytest.mark.parametrize("path", generated_files(ROOT), ids=lambda path: path.name)
def test_a_generated_file_is_fresh(path: Path):
    assert path.read_text() == generated_files(ROOT)[path], "run `make generate`"


def test_check_reports_nothing_for_fresh_files(capsys: pytest.CaptureFixture[str]):
    assert main(["--check"]) == 0
    assert capsys.readouterr().err == ""


def test_the_yaml_is_what_the_generator_makes():
    assert yaml.safe_load((ROOT / "crds" / "grpojobs.yaml").read_text()) == crd()


def test_the_chart_keeps_the_crd_when_the_release_is_deleted():
    # it has no template of Helm in it, except the braces of the CRD, which are escaped
    lines = chart_template().splitlines()
    assert [line for line in lines if line.startswith("{{-")] == [
        "{{- if .Values.crd.install }}",
        "{{- end }}",
    ]
    text = "\n".join(line for line in lines if not line.startswith("{{-")).replace('{{ "{{" }}', "{{")
    chart = yaml.safe_load(text)
    assert chart["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert chart == crd()


def test_every_string_list_and_map_is_bounded():
    unbounded = []
    for path, field in SPEC_AND_STATUS:
        is_bounded = {
            "string": "maxLength" in field or "enum" in field or field.get("format") == "date-time",
            "array": "maxItems" in field,
            "object": "properties" in field or "maxProperties" in field,
            None: "maxLength" in field,
        }
        # a value of any kind is bounded by the size of an object alone: no rule may read it
        if "x-kubernetes-preserve-unknown-fields" not in field and not is_bounded.get(
            field.get("type"), True
        ):
            unbounded.append(path)
    assert unbounded == []


def test_every_number_of_the_spec_is_bounded_on_both_sides():
    open_ended = [
        path
        for path, field in SPEC_AND_STATUS
        if path.startswith("spec")
        and field.get("type") in ("integer", "number")
        and not {"minimum", "maximum"} <= set(field)
    ]
    assert open_ended == []


def test_every_field_says_what_it_means():
    # an item that is not an object is described by its list
    items = {path for path, field in SPEC_AND_STATUS if path.endswith("[]") and "properties" not in field}
    fields = [(path, field) for path, field in SPEC_AND_STATUS if not path.endswith("{}")]
    fields = [(path, field) for path, field in fields if not OF_KUBERNETES.match(path)]
    assert [path for path, field in fields if not field.get("description") and path not in items] == []


def test_every_rule_is_in_the_schema():
    everything = [SCHEMA, *(field for _, field in fields_below(SCHEMA, ""))]
    written = {rule["rule"] for field in everything for rule in field.get("x-kubernetes-validations", ())}
    assert {rule.cel for rule in every_rule()} <= written


def test_every_rule_names_its_field_and_the_fix():
    for rule in every_rule():
        problem, colon, fix = rule.sentence.partition(": ")
        assert colon and fix, rule.sentence
        last = rule.field.rpartition(".")[2]
        assert not last or last.removeprefix("metadata.") in problem, rule.sentence
        assert "{" not in rule.message


def test_every_rule_about_a_text_is_in_the_schema_and_says_the_fix():
    written = [rule for _, field in SPEC_AND_STATUS for rule in field.get("x-kubernetes-validations", ())]
    for rule in every_text_rule():
        problem, colon, fix = rule.sentence.partition(": ")
        assert problem and colon and fix, rule.sentence
        assert rule.validation() in written


def test_nothing_in_a_spec_is_answered_with_a_regular_expression():
    assert [path for path, field in SPEC_AND_STATUS if path.startswith("spec") and "pattern" in field] == []


def test_the_crd_leaves_room_in_what_kubectl_apply_notes_down():
    # as Go writes JSON: without spaces, and with what HTML would read escaped
    stored = json.dumps(crd(), separators=(",", ":"), ensure_ascii=False) + "\n"
    num_bytes = len(stored.encode()) + 5 * sum(map(stored.count, "<>&"))
    assert num_bytes < 223_000 < 256 * 1024


def test_a_status_has_no_defaults():
    assert [path for path, field in SPEC_AND_STATUS if path.startswith("status") and "default" in field] == []


def test_an_object_of_the_spec_that_may_be_left_out_has_its_defaults():
    for name, section in SCHEMA["properties"]["spec"]["properties"].items():
        # dataset, rollout, colocated, async and scheduling have none: their presence decides. report is
        # NOT_STORED
        is_optional = name not in [
            *SCHEMA["properties"]["spec"]["required"],
            "dataset",
            "rollout",
            "colocated",
            "async",
            "report",
            "resumeFrom",
            "scheduling",
        ]
        if section.get("type") == "object" and is_optional:
            assert "default" in section, name


def test_kubectl_get_prints_eight_columns_and_with_wide_output_five_more():
    columns = VERSION["additionalPrinterColumns"]
    always = [column["name"].upper() for column in columns if "priority" not in column]
    assert always == ["PHASE", "MODE", "STEP", "REWARD", "TRAINER", "ROLLOUT", "RESTARTS", "AGE"]
    wide = {column["name"].upper(): column for column in columns if "priority" in column}
    assert [*wide] == ["REASON", "TOKENS/S", "STALENESS", "CHECKPOINT", "QUEUE"]
    assert {column["priority"] for column in wide.values()} == {1}
    # by its type: conditions have no places
    assert [column["name"] for column in columns if "[" in column["jsonPath"]] == ["Reason"]
    assert wide["REASON"]["jsonPath"] == '.status.conditions[?(@.type=="Ready")].reason'


@pytest.mark.parametrize("column", VERSION["additionalPrinterColumns"], ids=lambda column: column["name"])
def test_every_column_has_a_field(column: dict[str, Any]):
    found = SCHEMA
    for name in re.sub(r"\[.*\]", "[]", column["jsonPath"]).lstrip(".").split("."):
        found = found["properties"][name.removesuffix("[]")]
        found = found["items"] if name.endswith("[]") else found
        if name == "metadata":
            return  # it is Kubernetes' own
    assert found["type"] == column["type"]


def test_a_model_that_a_crd_cannot_express_is_refused_by_name():
    class Odd(ApiModel):
        value: int | str

    with pytest.raises(SchemaError, match=r"Odd\.value is a union"):
        structural_schema(Odd)

    class Divisible(ApiModel):
        value: Annotated[int, Field(multiple_of=3)]

    with pytest.raises(SchemaError, match=r"Divisible\.value has 'multipleOf'"):
        structural_schema(Divisible)


def test_the_root_has_the_fields_of_the_model():
    names = {field.alias for field in GRPOJob.model_fields.values()}
    assert set(SCHEMA["properties"]) == names
