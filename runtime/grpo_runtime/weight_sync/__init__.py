"""How weights travel from the trainer to engines: sources, senders, receivers, and the registry of backends.

Which engines there are is known in `fleet` and `colocated`; they take a backend from `registry` and see no
bytes. Backends that go between pods are in `network`, those within one in `local`, `disk` goes by way of
files, and `vllm_nccl` is the one that speaks to an engine of vLLM's own. `stream` is what travels, `receiver`
what takes it, and `worker` what vLLM loads. The verbs are vLLM's: init, start, update, finish, shutdown. They
reach an engine over a control channel; the bytes take the way of the backend.
"""
