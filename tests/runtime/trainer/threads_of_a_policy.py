"""`python threads_of_a_policy.py NUM_THREADS` trains a policy that is worth several threads for some steps.

Prints how many threads of the process have computed, and a digest of the weights.
"""

import hashlib
import sys
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo_runtime.torch_threads import pin_num_threads

NUM_STEPS = 2
CONFIG = Qwen2Config(
    vocab_size=512, hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, attn_implementation="sdpa",
)  # fmt: skip


def num_threads_of_process() -> int:
    """All of them, whatever they do."""
    return len(list(Path("/proc/self/task").iterdir()))


def main(num_threads: int) -> None:
    """Train."""
    pin_num_threads(num_threads)
    num_before = num_threads_of_process()
    torch.manual_seed(0)
    policy = Qwen2ForCausalLM(CONFIG)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    token_ids = torch.randint(CONFIG.vocab_size, (8, 128))
    for _ in range(NUM_STEPS):
        policy(input_ids=token_ids, labels=token_ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    digest = hashlib.sha256()
    for parameter in policy.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print(1 + num_threads_of_process() - num_before, digest.hexdigest())


if __name__ == "__main__":
    main(int(sys.argv[1]))
