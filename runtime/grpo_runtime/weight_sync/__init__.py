"""How weights travel from the trainer to engines.

Which engines there are is known in `engines.fleet` and `engines.colocated`; they take a backend from
`registry` and see no bytes. The verbs are vLLM's: init, start, update, finish, shutdown. They reach an engine
over a control channel; the bytes take the way of the backend.

`interface` says what a backend brings. What several share: `sender` and `receiver` (its two ends), `stream`
(what travels) and `tag` (by which it is known), `group` and `group_sender` (the trainer and all engines in
one group), `local_connection` (sockets within a container). A file for each way: `gloo`, `nccl`,
`shared_memory`, `ipc`, `in_process`, and the folders `disk`, `vllm_native` (engines of vLLM's own) and
`sparse` (around another way). `worker` is what vLLM loads.
"""
