"""The names and shapes of the tensors in a Hugging Face model directory, without loading them."""

from pathlib import Path

from safetensors import safe_open


def checkpoint_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in the *.safetensors files of `folder`.

    Raises FileNotFoundError when there is none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no *.safetensors file")
    shapes: dict[str, tuple[int, ...]] = {}
    for path in files:
        with safe_open(path, framework="numpy") as reader:
            for name in reader.keys():  # noqa: SIM118 - not a mapping
                shapes[name] = tuple(reader.get_slice(name).get_shape())
    return shapes
