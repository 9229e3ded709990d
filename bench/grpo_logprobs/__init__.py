"""Chunked logprobs beside dense ones: the passes of a policy both ways, on the CPU or a GPU."""
