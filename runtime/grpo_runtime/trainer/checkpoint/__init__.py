"""What a checkpoint holds, the store that keeps checkpoints whole, and when one is saved.

Safetensors and JSON only. Where the policy was loaded from at the start is in `model`.
"""
