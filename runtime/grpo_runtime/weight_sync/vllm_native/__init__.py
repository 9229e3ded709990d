"""`weightSync.backend: VllmNative`: weights by a transfer engine that vLLM, or a plugin of it, brings.

Both of its halves, the engine's and the trainer's, are found by the name under which they are registered with
vLLM's factories. `receiver` has the engine's half in a worker, `sender` the trainer's.
"""
