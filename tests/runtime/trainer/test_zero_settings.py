"""What of a job reaches DeepSpeed's configuration, and what is refused before DeepSpeed sees it."""

from typing import Any

import pytest
import torch

from grpo_api.v1alpha1.spec import DeepSpeedSpec, OptimizerSpec
from grpo_runtime.errors import UserError
from grpo_runtime.trainer.strategy.zero.settings import TUNING, deepspeed_config


def configured(**fields: Any) -> dict[str, Any]:
    """The section of ZeRO-3."""
    config = deepspeed_config(DeepSpeedSpec(**fields), stage=3, optimizer=OptimizerSpec())
    section: dict[str, Any] = config["zero_optimization"]
    return section


def test_what_is_left_out_is_left_to_deepspeed() -> None:
    assert configured() == {"stage": 3, "memory_efficient_linear": False}


def test_every_field_is_in_the_section_of_zero() -> None:
    section = configured(
        offload_optimizer=True, offload_parameters=True, overlap_comm=False, contiguous_gradients=True
    )
    assert section == {
        "stage": 3,
        "memory_efficient_linear": False,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
        "overlap_comm": False,
        "contiguous_gradients": True,
    }


def test_gradients_are_clipped_to_the_norm_of_the_job() -> None:
    config = deepspeed_config(DeepSpeedSpec(), stage=2, optimizer=OptimizerSpec(max_grad_norm=0.25))
    assert config["gradient_clipping"] == 0.25


def test_what_a_job_tunes_is_passed_through() -> None:
    assert configured(config='{"zero_optimization": {"sub_group_size": 1000}}')["sub_group_size"] == 1000


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("{]", "trainer.deepspeed.config is not JSON: "),
        ("[]", "write a JSON object"),
        ('{"zero_optimization": 2}', "write a JSON object"),
        (
            '{"zero_optimization": {"zenflow": {}}}',
            "has zero_optimization.zenflow, which this trainer",
        ),
        ('{"compile": {}}', "has compile, which this trainer does not take: remove it"),
        # not seen by the API server, which does not read JSON
        (r'{"zero_optimization": {"st\u0061ge": 1}}', "has zero_optimization.stage, which"),
    ],
)
def test_a_configuration_that_cannot_be_kept_is_refused_by_name(config: str, problem: str) -> None:
    with pytest.raises(UserError) as refused:
        configured(config=config)
    assert problem in str(refused.value)


def test_deepspeed_knows_every_key_that_a_job_may_tune() -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    names = {field.alias or name for name, field in DeepSpeedZeroConfig.model_fields.items()}
    assert names >= TUNING


def test_a_value_that_deepspeed_refuses_is_the_jobs_mistake() -> None:
    from grpo_runtime.trainer.strategy.zero.engine import join_ranks

    config = {"zero_optimization": {"stage": 2, "reduce_bucket_size": -1}}
    with pytest.raises(UserError, match=r"DeepSpeed refuses trainer.deepspeed.config: reduce_bucket_size: "):
        join_ranks(config, device=torch.device("cpu"))
