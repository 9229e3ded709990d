"""One sampling seed for every completion, so that a run can be repeated to the last bit.

The seed depends on the run, the step, the prompt and the completion's index in its group. It does not depend
on the engine, the order of requests, the number of replicas or a retry.
"""

import hashlib
import struct

GROUP_SEED_BITS = 62
"""All seeds of a group fit a signed 64-bit integer: torch and vLLM accept them unchanged."""


def derive_seed(run_seed: int, *, step: int, prompt_index: int, sample_index: int) -> int:
    """The sampling seed of sample `sample_index` of prompt `prompt_index` in optimizer step `step`.

    It is the SHA-256 of run, step and prompt as little-endian signed 64-bit integers, cut to 62 bits, plus
    `sample_index`. It is the same on every machine and in every version of Python. Different groups have
    unrelated seeds, and the seeds within a group are consecutive, as those of vLLM's `n` samples are.
    """
    return _seed_of(struct.pack("<3q", run_seed, step, prompt_index)) + sample_index


def turn_seed(seed: int, *, turn: int) -> int:
    """The sampling seed of a turn, counted from 0, of the completion whose seed is `seed`: that one for the
    first, so that a completion of one turn is the same however it is made."""
    if turn == 0:
        return seed
    return _seed_of(struct.pack("<2q", seed, turn))


def segment_seed(seed: int, *, start: int) -> int:
    """The sampling seed of what follows the first `start` tokens of a completion that an engine has handed
    over: its own for the first segment. With that one again, the next engine would draw the noise of the
    first tokens once more."""
    if start == 0:
        return seed
    return _seed_of(b"segment" + struct.pack("<2q", seed, start))


def _seed_of(key: bytes) -> int:
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> (64 - GROUP_SEED_BITS)
