"""How many parameters a model has, as far as its name tells. Pure: no file of the model is read."""

import re

_SIZE = re.compile(
    r"(?<![a-z0-9.])(?:(?P<experts>[0-9]{1,4})x)?(?P<number>[0-9]{1,4}(?:\.[0-9]{1,3})?)(?P<unit>[bm])(?![a-z0-9])",
    re.IGNORECASE,
)
_UNITS = {"b": 10**9, "m": 10**6}


def num_parameters_named(source: str) -> int | None:
    """The parameters of the model at a source, by the convention of the Hugging Face Hub: 0.6B, 135M, 8x7B.
    None where no part of its name is a size.

    The largest size counts: `30B-A3B` has 30 billion, of which 3 take part in each token, and a `1M` beside
    a `7B` is the length of a context. The owner of a repository and the name of a claim do not count.
    """
    scheme, _, path = source.partition("://")
    name = path if scheme == "file" else path.partition("/")[2]
    sizes = [
        int(match["experts"] or 1) * float(match["number"]) * _UNITS[match["unit"].lower()]
        for match in _SIZE.finditer(name)
    ]
    return round(max(sizes)) if sizes else None
