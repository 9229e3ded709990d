"""Calls NVIDIA's own runtime past the null GPU's, as a library with one inside does: prints the answer."""

import ctypes
from pathlib import Path

import nvidia

(LIBRARY,) = (found for folder in nvidia.__path__ for found in Path(folder).rglob("libcudart.so.*"))
count = ctypes.c_int()
print(ctypes.CDLL(str(LIBRARY)).cudaGetDeviceCount(ctypes.byref(count)), count.value)
