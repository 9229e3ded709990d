"""Weights from the trainer to engines: senders, receivers and the backends they can travel by.

The verbs are vLLM's: init, start, update, finish, shutdown. A *sender* lives in the trainer, a *receiver* in
the engine's worker. The verbs reach the receiver over an authenticated control channel; the bytes take
whatever way the backend has. `registry.BACKENDS` lists the backends.
"""
