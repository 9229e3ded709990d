"""Bytes on one GPU, of training from the sizes of a model and of a step, and of an engine's worker. Pure.

P parameters, T tokens of a micro-batch with its padding, L layers, H hidden size, I intermediate size, Q and
K widths of queries and of keys, V vocabulary, c bytes of a number in the forward pass: 4 in float32, 2 in
bfloat16. Tied parameters are counted once. With an adapter of A parameters, P are frozen: c bytes each, and
float32 under DeepSpeed. Then N = A parameters are trained, and else N = P.

Not counted, because they are small beside the rest: log-sum-exps, masks, rotary angles and token ids.
"""

from dataclasses import dataclass

MASTER_BYTES = 4
"""Bytes of one number of the weights, the gradients and each of AdamW's two moments, which are float32."""


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """The sizes of a model, as its configuration gives them."""

    num_parameters: int
    num_layers: int
    num_layer_parameters: int
    """Parameters of the largest layer."""
    num_largest_parameters: int
    """Parameters of the largest tensor of a layer."""
    hidden: int
    intermediate: int
    """Intermediate values of one token: of a mixture of experts, those of all the experts that it goes
    through."""
    query_width: int
    key_width: int
    num_heads: int
    vocabulary: int
    num_norms: int
    """Norms of width H in one layer."""
    has_query_norm: bool
    """Whether queries and keys are normalised."""
    keeps_scores: bool
    """Whether attention keeps its scores [heads, T, T], as transformers' plain (eager) one does."""
    num_adapter_parameters: int = 0
    """Parameters of an adapter, which are not among `num_parameters`; 0 where the model itself is trained."""
    num_largest_adapter_parameters: int = 0
    """Parameters of the largest tensor of the adapter."""
    num_chosen_experts: int = 0
    """Experts that a token goes through in each layer; 0 without a mixture of experts."""

    @property
    def has_adapter(self) -> bool:
        """Whether only the adapter is trained."""
        return self.num_adapter_parameters > 0

    @property
    def num_trained_parameters(self) -> int:
        """N."""
        return self.num_adapter_parameters or self.num_parameters

    @property
    def num_adapter_layer_parameters(self) -> int:
        """Adapter parameters of one layer, where all layers have as many."""
        return -(-self.num_adapter_parameters // max(1, self.num_layers))

    @property
    def num_root_parameters(self) -> int:
        """Parameters outside the layers: embeddings, last norm, head."""
        return self.num_parameters - self.num_layers * self.num_layer_parameters

    @property
    def num_head_parameters(self) -> int:
        """Parameters of the head's matrix, also where it is that of the embeddings."""
        return self.vocabulary * self.hidden


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Over how many ranks a strategy spreads weights, gradients and optimizer; 1 where each rank has all."""

    weights: int = 1
    gradients: int = 1
    optimizer: int = 1
    is_fsdp2: bool = False
    zero_stage: int = 0
    """ZeRO stage of DeepSpeed, which keeps master weights beside the weights; 0 without it."""
    is_optimizer_on_cpu: bool = False
    are_weights_on_cpu: bool = False

    @property
    def are_gradients_on_cpu(self) -> bool:
        """Where the optimizer is: DeepSpeed brings each part of them to it."""
        return self.is_optimizer_on_cpu and self.gradients > 1


DDP = Spread()
REDUCED_AT_ONCE, KEPT_TOGETHER = 500_000_000, 1_000_000_000
"""DeepSpeed's own `reduce_bucket_size` and `stage3_max_live_parameters`: numbers that it sums over ranks at a
time, and that it leaves together after they were used."""


def fsdp2(num_ranks: int) -> Spread:
    """Each rank has its part of everything."""
    return Spread(weights=num_ranks, gradients=num_ranks, optimizer=num_ranks, is_fsdp2=True)


def zero(
    stage: int, num_ranks: int, *, optimizer_on_cpu: bool = False, weights_on_cpu: bool = False
) -> Spread:
    """ZeRO of this stage (Rajbhandari et al., arXiv:1910.02054, section 5), with DeepSpeed's bounds."""
    return Spread(
        weights=num_ranks if stage == 3 else 1,
        gradients=num_ranks if stage >= 2 else 1,
        optimizer=num_ranks,
        zero_stage=stage,
        is_optimizer_on_cpu=optimizer_on_cpu,
        are_weights_on_cpu=weights_on_cpu,
    )


@dataclass(frozen=True, kw_only=True)
class StepSizes:
    """What of a step decides on its memory."""

    num_tokens: int
    """T."""
    longest: int
    """Tokens of the longest sequence."""
    compute_bytes: int
    """c."""
    is_recomputed: bool
    """Whether the backward pass recomputes activations (gradient checkpointing)."""
    spread: Spread = DDP
    """The strategy."""
    chunk_logits: int
    """Most logits at one time."""


@dataclass(frozen=True, kw_only=True)
class TrainingBytes:
    """What one rank holds. The peak is either in the backward pass or in the optimizer's step."""

    weights: int
    gradients: int
    optimizer: int
    """AdamW's moments, and DeepSpeed's master weights."""
    buckets: int
    """Buckets in which gradients are summed, with DDP the gradients themselves; they are kept between
    updates."""
    units: int
    """Weights that are put together, with gradients."""
    casts: int
    """Weights in the precision of the forward pass, where that is another one."""
    activations: int
    """Activations that the forward pass keeps for the backward pass."""
    work: int
    """Most that the backward pass computes with: chunks of logits, or a layer."""
    optimizer_work: int
    """What DeepSpeed steps with, when activations and logits are gone. AdamW itself needs nothing."""

    @property
    def resting(self) -> int:
        """Between two updates: gradients are dropped but for DDP's, and of shared weights each rank holds its
        part."""
        return self.weights + self.optimizer + self.buckets

    @property
    def peak(self) -> int:
        """The most at one time."""
        always = self.resting + self.gradients + self.units
        return always + max(self.casts + self.activations + self.work, self.optimizer_work)


def training_bytes(model: ModelSizes, step: StepSizes) -> TrainingBytes:
    """What a rank holds in an update of several micro-batches: from the second on gradients are whole while
    the activations are, too."""
    spread = step.spread
    is_mixed = step.compute_bytes != MASTER_BYTES
    stepped = MASTER_BYTES * _part(model.num_trained_parameters, spread.optimizer)
    # DeepSpeed copies a rank's gradients into one vector
    lays_end_to_end = spread.zero_stage > 0 and not spread.is_optimizer_on_cpu
    return TrainingBytes(
        weights=0 if spread.are_weights_on_cpu else _weights(model, step),
        # of DDP they are in its buckets
        gradients=0
        if spread == DDP or spread.are_gradients_on_cpu
        else MASTER_BYTES * _part(model.num_trained_parameters, spread.gradients),
        optimizer=0 if spread.is_optimizer_on_cpu else (3 if spread.zero_stage else 2) * stepped,
        buckets=_buckets(model, spread),
        units=_whole_units(model, step),
        # autocast keeps those of the layers until the forward pass ends, and the backward pass reads them
        casts=_layer_casts(model, step) if is_mixed and not spread.is_fsdp2 else 0,
        activations=_activations(model, step),
        work=_work(model, step),
        optimizer_work=stepped if lays_end_to_end else 0,
    )


def layer_activations(model: ModelSizes, step: StepSizes) -> int:
    """What one layer keeps for its backward pass: T (norms + attention + MLP).

    A norm keeps its input and what it has normalised in float32, and its output as the next product's
    input: (8 + c) H. Attention keeps queries, keys, values and its output: c (2 Q + 2 K), with normalised
    queries and keys (4 + c) (Q + K) more; the plain one also its scores, in float32 and as the next product's
    input, heads x the longest sequence of each. The MLP keeps gate, its activation, up and their product:
    4 c I. A mixture of experts keeps a token's input and output for each of its E experts, 2 c E H, and with
    its MLP in the precision of its weights: autocast, which FSDP2 does without, knows no product of experts.
    """
    c = step.compute_bytes
    norms = model.num_norms * (2 * MASTER_BYTES + c) * model.hidden
    attention = c * (2 * model.query_width + 2 * model.key_width)
    if model.has_query_norm:
        attention += (MASTER_BYTES + c) * (model.query_width + model.key_width)
    if model.keeps_scores:
        attention += (MASTER_BYTES + c) * model.num_heads * step.longest
    if model.num_chosen_experts and not step.spread.is_fsdp2:
        c = MASTER_BYTES
    mlp = c * (4 * model.intermediate + 2 * model.num_chosen_experts * model.hidden)
    return step.num_tokens * (norms + attention + mlp)


@dataclass(frozen=True, kw_only=True)
class EngineSizes:
    """What of an engine decides on its memory."""

    compute_bytes: int
    """c."""
    tensor_parallel: int
    pipeline_parallel: int
    max_model_len: int


@dataclass(frozen=True, kw_only=True)
class EngineBytes:
    """What one worker of an engine needs at least."""

    weights: int
    one_sequence: int
    """KV cache of the longest sequence alone; below it an engine does not start."""


def engine_bytes(model: ModelSizes, engine: EngineSizes) -> EngineBytes:
    """Weights c P, and keys and values of every layer and token, 2 c K L x tokens, shared by the workers of
    all tensor-parallel parts and stages."""
    c, num_workers = engine.compute_bytes, engine.tensor_parallel * engine.pipeline_parallel
    cache = 2 * c * model.key_width * model.num_layers * engine.max_model_len
    return EngineBytes(
        weights=-(-c * model.num_parameters // num_workers), one_sequence=-(-cache // num_workers)
    )


def _weights(model: ModelSizes, step: StepSizes) -> int:
    """4 P, or with an adapter c P + 4 A, of which each rank has its part."""
    frozen_bytes = _frozen_bytes(step) if model.has_adapter else MASTER_BYTES
    num_parts = step.spread.weights
    adapter = MASTER_BYTES * _part(model.num_adapter_parameters, num_parts)
    return frozen_bytes * _part(model.num_parameters, num_parts) + adapter


def _frozen_bytes(step: StepSizes) -> int:
    """Bytes of a frozen number under an adapter."""
    return MASTER_BYTES if step.spread.zero_stage else step.compute_bytes


def _layer_casts(model: ModelSizes, step: StepSizes) -> int:
    """c L P_layer, or c A where the layers have that precision already."""
    if model.has_adapter and not step.spread.zero_stage:
        return step.compute_bytes * model.num_adapter_parameters
    return step.compute_bytes * model.num_layers * model.num_layer_parameters


def _buckets(model: ModelSizes, spread: Spread) -> int:
    """4 N with DDP, nothing with FSDP2, and with DeepSpeed what it sums at a time."""
    if spread.is_fsdp2:
        return 0
    return MASTER_BYTES * (
        min(model.num_trained_parameters, REDUCED_AT_ONCE)
        if spread.zero_stage
        else model.num_trained_parameters
    )


def _part(num_parameters: int, num_parts: int) -> int:
    """P / parts, rounded up."""
    return -(-num_parameters // num_parts)


def _whole_units(model: ModelSizes, step: StepSizes) -> int:
    """Bytes of units that are put together. With FSDP2: the last unit and two layers put together in c, the
    gradient of a layer in c, and in float32 what is summed over the ranks, of the larger of the two. With
    ZeRO-3 as many float32 weights as DeepSpeed leaves together."""
    if step.spread.zero_stage == 3:
        return MASTER_BYTES * min(model.num_parameters, KEPT_TOGETHER)
    if not step.spread.is_fsdp2:
        return 0
    root, layer = model.num_root_parameters, model.num_layer_parameters
    together = step.compute_bytes * (root + 2 * layer)
    if model.has_adapter:
        of_layer = model.num_adapter_layer_parameters
        return together + 3 * step.compute_bytes * of_layer + MASTER_BYTES * of_layer
    return together + step.compute_bytes * layer + MASTER_BYTES * max(root, layer)


def _activations(model: ModelSizes, step: StepSizes) -> int:
    """What stays from the forward to the backward pass: of every layer all it keeps, or with recomputation
    its float32 input, 4 T L H."""
    if step.is_recomputed:
        return step.num_tokens * model.num_layers * MASTER_BYTES * model.hidden
    return model.num_layers * layer_activations(model, step)


def _work(model: ModelSizes, step: StepSizes) -> int:
    """Bytes of the work beside that, the larger of two: the head's work with what the last norm and the head
    keep and pass on, 16 T H; or a layer that is computed again, with the gradients on their way through it, T
    (4 H + 2 c I), and the gradient of its largest tensor."""
    token = MASTER_BYTES * model.hidden
    in_head = 4 * step.num_tokens * token + _head(model, step)
    if not step.is_recomputed:
        return in_head
    passing = step.num_tokens * (token + 2 * step.compute_bytes * model.intermediate)
    is_whole = not model.has_adapter
    gradient = MASTER_BYTES * (
        model.num_largest_parameters if is_whole else model.num_largest_adapter_parameters
    )
    return max(in_head, layer_activations(model, step) + passing + gradient)


def _head(model: ModelSizes, step: StepSizes) -> int:
    """The chunk in the backward pass: scores and their gradient in float32, 8 bytes of each of the T V logits
    or of a chunk. And the gradient of the head's weight, 4 V H. In bfloat16 also the scores' gradient in it,
    2 bytes of each logit, the weight in it and one product, 2 x 2 V H. A frozen head has no gradient, and has
    that precision where DeepSpeed is not used.

    A token without a logprob has none of this: T is an upper bound."""
    num_rows = max(1, step.chunk_logits // model.vocabulary)
    num_logits = min(step.num_tokens, num_rows) * model.vocabulary
    is_mixed = step.compute_bytes != MASTER_BYTES
    c = step.compute_bytes if is_mixed else 0
    of_weight = MASTER_BYTES + 2 * c
    if model.has_adapter:
        of_weight = c if step.spread.zero_stage else 0
    return (2 * MASTER_BYTES + c) * num_logits + of_weight * model.num_head_parameters
