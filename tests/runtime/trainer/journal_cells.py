"""The kills over vLLM, and which of them `make test` has; see test_journal_on_engines.py."""

import itertools
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One killed run; DDP where there is no strategy."""

    mode: str
    num_ranks: int
    strategy: str | None
    moment: str


MOMENTS = ("generation", "scored", "trained", "saving", "reward", "torn record")
"""A torn record is one of a sample that was being written: it is cut off after the kill."""
VALUES = (("Disaggregated", "Colocated"), (1, 2), (None, "FSDP2", "ZeRO2"), MOMENTS)
"""Of the fields of a Cell."""
PAIRWISE = {
    Cell("Disaggregated", 1, None, "generation"),
    Cell("Disaggregated", 2, None, "scored"),
    Cell("Colocated", 1, None, "trained"),
    Cell("Colocated", 2, None, "saving"),
    Cell("Colocated", 2, "FSDP2", "generation"),
    Cell("Colocated", 1, "FSDP2", "scored"),
    Cell("Disaggregated", 2, "FSDP2", "trained"),
    Cell("Disaggregated", 1, "FSDP2", "saving"),
    Cell("Colocated", 2, "ZeRO2", "generation"),
    Cell("Disaggregated", 1, "ZeRO2", "scored"),
    Cell("Colocated", 1, "ZeRO2", "trained"),
    Cell("Disaggregated", 2, "ZeRO2", "saving"),
}
IN_MAKE_TEST = PAIRWISE | {
    Cell("Disaggregated", 1, "FSDP2", "reward"),
    Cell("Colocated", 2, None, "torn record"),
}
"""The rest: `make test-matrix`."""


def all_cells() -> list[Cell]:
    return list(itertools.starmap(Cell, itertools.product(*VALUES)))
