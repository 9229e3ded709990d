"""vLLM as the engine: all that imports it, or names its arguments, but how weights get into it.

`arguments` makes its arguments and environment of a RunConfig, and imports no vLLM; `configuration` lets vLLM
check them, and `completions` turns sampling parameters and completions from our types into vLLM's and back.
With these are made

    local_engine      a `LocalEngine` and `EngineOfChild` of `colocated`
    server            the server of a rollout pod, with the `SamplingEngine` that the guard of `serve` calls
    followed_engine   a `FollowedEngine` of `follow`

and `executor`, `cpu_workers` and `cpu_experts` are what vLLM loads into processes of its own. Another engine
is a folder beside this one with the same. Those who start an engine import this folder by name:
`colocated.engine_child`, `serve.main`, `follow.main` and `trainer.colocation`; so do those who need its
environment or arguments before it starts: `colocated.engine_process`, `trainer.rank_imports`,
`trainer.data_check`, `memory_plan.gpu_plan`, `local.gpus`, `serve.guard` and `weight_sync.backend_of_run`.
"""
