"""Whether weights are what they should be: a probe shows that an engine holds the trainer's, and a digest
that a replayed step ends with those of before.
"""

import hashlib

import torch
from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec import Dtype
from grpo_runtime.rollouts.interface import Probe
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.strategy.interface import Strategy
from grpo_runtime.weight_sync.tag import HELD_TAG_BYTES, held_tag

NUM_PROBE_TOKENS = {Dtype.FLOAT32: 16, Dtype.BFLOAT16: 128}
"""In float32 every token shows a difference; in bfloat16 only the mean over many does."""
PROBE_TOLERANCES = {Dtype.FLOAT32: 1e-4, Dtype.BFLOAT16: 0.1}
"""Nats a token, on average. float32 engines were measured within 3e-5. bfloat16 rounds the output of each
layer to 8 bits: single tokens were seen to differ by half a nat, and the mean by .04."""
TEXT = """A farmer sells eggs at the market every morning. On Monday she has 48 eggs in four baskets and sells
three quarters of them before noon. How many eggs does she take home, and how many are left in each basket if
they are spread evenly? First find how many eggs were sold: 48 times 3 divided by 4 is 36. Then subtract: 48
minus 36 is 12. Twelve eggs in four baskets are three eggs each. The same idea helps with time: a train that
leaves at 9:40 and travels for two hours and a half arrives at 12:10. To be sure, go back from the answer to
the question and check that every number in it was used. If one was not, read the text again, because it may
matter or may only be there to distract."""
"""What models are trained on looks like this; on random tokens those in bfloat16 differ most."""


def make_probe(strategy: Strategy, run_config: RunConfig, *, tokenizer: PreTrainedTokenizerBase) -> Probe:
    """The probe of a run under the policy's present weights. With a sharded strategy every rank makes it."""
    dtype = run_config.model.dtype
    token_ids = probe_tokens(
        tokenizer,
        dtype=dtype,
        vocab_size=strategy.vocab_size,
        max_model_len=run_config.engine.max_model_len,
    )
    logprobs = strategy.probe_logprobs(torch.tensor([token_ids], device=strategy.device))
    return Probe(
        token_ids=token_ids,
        logprobs=tuple(logprobs[0].tolist()),
        tolerance=PROBE_TOLERANCES[dtype],
        vocab_size=strategy.vocab_size,
    )


def probe_tokens(
    tokenizer: PreTrainedTokenizerBase, *, dtype: Dtype, vocab_size: int, max_model_len: int
) -> tuple[int, ...]:
    """The token ids of the text, the same for every run of a model. Where the text has too few, others spread
    over the whole vocabulary follow."""
    # one token less than the engine's longest sequence: it must generate one to score a prompt
    length = min(NUM_PROBE_TOKENS[dtype], max_model_len - 1)
    # not verbose: it would warn that the text is longer than a small model reads, and only a part is taken
    encoded = tokenizer.encode(TEXT, add_special_tokens=False, verbose=False)
    of_text = [int(token) for token in encoded]
    digests = (hashlib.sha256(f"probe {index}".encode()).digest() for index in range(length))
    others = [int.from_bytes(digest[:8], "little") % vocab_size for digest in digests]
    return tuple((of_text + others)[:length])


def weight_digest(strategy: Strategy, *, ranks: Ranks) -> str:
    """The digest of the weights that all ranks hold together, as 32 hexadecimal digits; every rank calls this
    at the same time.

    Weights that are spread over the ranks in another way have another digest.
    """
    ranks.position.at("digests the weights")
    tags = torch.zeros((ranks.world_size, HELD_TAG_BYTES), dtype=torch.uint8)
    shards = list(strategy.weight_shards())
    # master weights may be in CPU memory although the strategy computes on a GPU
    own = held_tag(shards, is_on_gpu=all(shard.is_cuda for shard in shards))
    tags[ranks.rank] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    # the others add zeros
    return hashlib.sha256(ranks.sum(tags).numpy().tobytes()).hexdigest()[:32]
