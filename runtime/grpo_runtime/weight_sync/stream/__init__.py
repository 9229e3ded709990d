"""What travels: all weights as one stream of bytes, with its layout, and the copy of them that is sent.

In which dtype each weight travels is chosen before, by `PolicyWeights.layout` in `trainer.policy`; `manifest`
lists the dtypes that there are, and `worker.transfer_engine` loads them into the engine.
"""
