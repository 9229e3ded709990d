"""The requests of a step."""

from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.model.char_tokenizer import char_tokenizer
from grpo_runtime.trainer.prompting import make_requests

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
    found = make_requests(
        prompts, step=0, run_config=run.model_copy(update={"sampling": sampling}), tokenizer=tokenizer
    )
    assert tokenizer.decode(found[0].prompt_ids) == "[system]Sum.[user]xx!"
    assert len(found) == run.algorithm.group_size
