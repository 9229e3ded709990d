"""vLLM's sampling masks: which tokens were left to draw each token of a completion from.

An engine with `--return-sampling-mask` gives them with every completion, as `sampling_mask.token_ids` of an
output. No job can ask for them yet, and
docs/decisions/truncated-sampling.md says why.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

Mask = tuple[int, ...]

_MASKS = TypeAdapter(tuple[tuple[Annotated[int, Field(ge=0, strict=True)], ...], ...])


def read_sampling_mask(found: object, *, completion_ids: Sequence[int]) -> tuple[Mask, ...]:
    """The token ids that were kept at each token of a completion, as vLLM gives them.

    Raises ValueError when they are no masks, when there are more or fewer than tokens, when one has a token
    twice, and when a token is not in its own mask: the engine cannot have drawn it.
    """
    if found is None:
        raise ValueError("the engine gave no sampling mask: it runs without --return-sampling-mask")
    try:
        masks = _MASKS.validate_python(found)
    except ValidationError as error:
        raise ValueError(f"the sampling mask is not a list of token ids for each token: {error}") from error
    if len(masks) != len(completion_ids):
        raise ValueError(f"there are sampling masks for {len(masks)} of {len(completion_ids)} tokens")
    for place, (token, mask) in enumerate(zip(completion_ids, masks, strict=True)):
        if len(set(mask)) != len(mask):
            raise ValueError(f"the sampling mask of token {place} has a token twice")
        if token not in mask:
            raise ValueError(f"token {place} ({token}) is not in its own sampling mask")
    return masks
