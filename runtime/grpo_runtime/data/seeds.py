"""One seed for every sample, so that a run can be repeated to the last bit.

The seed of a sample depends on what the sample *is* (run, step, prompt, place in its group) and on nothing
about how it was made: not on the engine, the order of requests, the number of replicas or a retry.
"""

import hashlib
import struct

SEED_BITS = 63
"""A seed fits a signed 64-bit integer and is never negative: torch and vLLM accept it unchanged."""


def derive_seed(run_seed: int, *, step: int, prompt_index: int, sample_index: int) -> int:
    """The sampling seed of sample `sample_index` of prompt `prompt_index` in optimizer step `step`.

    SHA-256 over the four numbers as little-endian signed 64-bit integers, cut to 63 bits: the same on every
    machine and in every version of Python, and neighbouring samples share nothing.
    """
    key = struct.pack("<4q", run_seed, step, prompt_index, sample_index)
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> (64 - SEED_BITS)
