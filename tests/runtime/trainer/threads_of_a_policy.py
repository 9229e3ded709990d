"""`python threads_of_a_policy.py NUM_THREADS` trains a policy that is worth several threads for some steps.

Prints how many threads of the process have computed, and a digest of the weights.
"""

import hashlib
import os
import sys

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo_api.v1alpha1.spec import Dtype, OptimizerSpec
from grpo_runtime.torch_threads import settle_num_threads
from grpo_runtime.trainer.optimizer import PolicyOptimizer
from grpo_runtime.trainer.policy import Policy

NUM_STEPS = 3
CONFIG = Qwen2Config(
    vocab_size=512, hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, attn_implementation="sdpa",
)  # fmt: skip


def main(num_threads: int) -> None:
    """Train."""
    settle_num_threads(num_threads)
    num_before = len(os.listdir("/proc/self/task"))
    torch.manual_seed(0)
    policy = Policy(Qwen2ForCausalLM(CONFIG), temperature=1.0, dtype=Dtype.FLOAT32)
    optimizer = PolicyOptimizer(policy, OptimizerSpec(learning_rate=1e-3), total_steps=NUM_STEPS)
    token_ids = torch.randint(CONFIG.vocab_size, (8, 128))
    for step in range(NUM_STEPS):
        logprobs, _ = policy(token_ids)
        (-logprobs.mean()).backward()
        optimizer.step(step=step)
    digest = hashlib.sha256()
    for parameter in policy.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print(1 + len(os.listdir("/proc/self/task")) - num_before, digest.hexdigest())


if __name__ == "__main__":
    main(int(sys.argv[1]))
