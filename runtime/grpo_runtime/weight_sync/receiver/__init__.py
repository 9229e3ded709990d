"""The engine's end of every backend that moves bytes: what came is staged, checked and given to the model."""
