"""How weights travel from the trainer to engines: sources, senders, receivers, and the registry of backends.

Which engines there are is known in `fleet` and `colocated`; they take a backend from `registry` and see no
bytes. The verbs are vLLM's: init, start, update, finish, shutdown. They reach an engine over a control
channel; the bytes take the way of the backend.
"""
