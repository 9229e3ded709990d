"""Seeds: what they depend on, and that no release changes them."""

from hypothesis import given
from hypothesis import strategies as st

from grpo_runtime.data.seeds import derive_seed

indexes = st.integers(min_value=0, max_value=2**40)


def test_a_seed_never_changes_between_releases() -> None:
    assert derive_seed(0, step=0, prompt_index=0, sample_index=0) == 4005297305663284263
    assert derive_seed(42, step=7, prompt_index=3, sample_index=5) == 2137431658876551812


@given(indexes, indexes, indexes, indexes)
def test_a_seed_fits_a_signed_64_bit_integer(run: int, step: int, prompt: int, sample: int) -> None:
    assert 0 <= derive_seed(run, step=step, prompt_index=prompt, sample_index=sample) < 2**63


def test_the_seeds_of_a_group_are_consecutive_as_those_of_vllms_n_samples() -> None:
    seeds = [derive_seed(3, step=2, prompt_index=1, sample_index=sample) for sample in range(8)]
    assert seeds == list(range(seeds[0], seeds[0] + 8))


def test_every_sample_of_a_run_has_its_own_seed() -> None:
    seeds = {
        derive_seed(run, step=step, prompt_index=prompt, sample_index=sample)
        for run in range(3)
        for step in range(20)
        for prompt in range(16)
        for sample in range(8)
    }
    assert len(seeds) == 3 * 20 * 16 * 8
