"""What is measured on GPUs: `one_gpu` by bench/gpu/sync.py, `two_gpus` by bench/gpu/two_gpus.py."""
