"""Rollout engines: where they run, how the trainer reaches them, and what they are made of.

`fleet` and `colocated` are the two kinds of engines that a trainer has: in pods of their own, over HTTP, and
in the training processes or beside them. `serve` is the server in such a pod, `follow` a server that follows
the weights of a run from outside, and `routes` what fleet and server agree on. None of them imports vLLM.

What they and all others ask of an inference engine is an `EngineKind` (`interface`), and `registry` has those
that there are. `vllm` is the one: all that knows vLLM, but how weights get into it, which is in
`weight_sync`. Another one is a folder beside it and a row in `registry`.
"""
