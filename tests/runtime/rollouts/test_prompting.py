"""The groups of a step."""

from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.model.tiny import char_tokenizer
from grpo_runtime.rollouts.prompting import make_groups

from ..conftest import run_config


def test_the_requests_have_the_tokens_of_the_chat_that_the_job_asks_for() -> None:
    run = run_config()
    sampling = SamplingSpec(
        max_tokens=16,
        apply_chat_template=True,
        system_prompt="Sum.",
        chat_template="{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ mark }}",
        chat_template_arguments={"mark": "!"},
    )
    tokenizer = char_tokenizer(max_length_tokens=256)
    prompts = [Prompt(index=0, content="xx", columns={})]
    [group] = make_groups(
        prompts, step=0, run_config=run.model_copy(update={"sampling": sampling}), tokenizer=tokenizer
    )
    assert tokenizer.decode(group.requests[0].prompt_ids) == "[system]Sum.[user]xx!"
    assert len(group.requests) == run.algorithm.group_size
    assert (group.number, group.prompt, group.missing) == (0, prompts[0], list(range(len(group.requests))))
