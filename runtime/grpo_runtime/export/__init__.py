"""Uploads of a trained model: what a destination is, the Hugging Face Hub and S3-compatible stores, and the
order, the checks and the repetitions that all destinations share. It needs no torch.

How the model is written to the output directory is in `trainer.checkpoint`.
"""
