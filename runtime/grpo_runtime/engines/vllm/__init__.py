"""vLLM as the engine: all that imports it, or names its arguments, but how weights get into it.

`kind` is all that others see of it: an `EngineKind`, for a row in `engines.registry`. It and `arguments`,
which makes vLLM's arguments and environment of a RunConfig, import no vLLM. `configuration` lets vLLM check
them, and `completions` turns sampling parameters and completions from our types into vLLM's and back. With
these are made

    local_engine      an `EngineOfChild` of `colocated`
    server            the server of a rollout pod, with the `ServedEngine` that the guard of `serve` calls
    followed_engine   a `FollowedEngine` of `follow`

and `executor`, `cpu_workers` and `cpu_experts` are what vLLM loads into processes of its own.
"""
