"""A step of TRL's GRPOTrainer and of our trainer, measured in turn.

`cases`, `batches`, `steps` and `report` are pure. `trl_side` is run by the Python of TRL's own environment,
which `environment` makes; it and `rewards` import nothing of ours.
"""
