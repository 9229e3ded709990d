"""One seed for every sample, so that a run can be repeated to the last bit.

The seed of a sample depends on what the sample *is* (run, step, prompt, place in its group) and on nothing
about how it was made: not on the engine, the order of requests, the number of replicas or a retry.
"""

import hashlib
import struct

GROUP_SEED_BITS = 62
"""All seeds of a group fit a signed 64-bit integer: torch and vLLM accept them unchanged."""


def derive_seed(run_seed: int, *, step: int, prompt_index: int, sample_index: int) -> int:
    """The sampling seed of sample `sample_index` of prompt `prompt_index` in optimizer step `step`.

    SHA-256 over run, step and prompt as little-endian signed 64-bit integers, cut to 62 bits, plus the
    sample. It is the same on every machine and in every version of Python, neighbouring groups share nothing,
    and the seeds of a group follow on each other, as those of vLLM's `n` samples do.
    """
    key = struct.pack("<3q", run_seed, step, prompt_index)
    group = int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> (64 - GROUP_SEED_BITS)
    return group + sample_index
