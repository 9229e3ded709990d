"""What `make test` kills over vLLM."""

import itertools
from dataclasses import fields

from journal_cells import IN_MAKE_TEST, PAIRWISE, VALUES, Cell, all_cells


def test_make_test_has_every_pair_of_mode_processes_strategy_and_moment() -> None:
    """But for a kill in a reward call and in a write, each of which is there once."""
    names = [field.name for field in fields(Cell)]
    of_pairwise = (*VALUES[:3], ("generation", "scored", "trained", "saving"))
    for one, other in itertools.combinations(range(len(names)), 2):
        found = {(getattr(cell, names[one]), getattr(cell, names[other])) for cell in PAIRWISE}
        assert found == set(itertools.product(of_pairwise[one], of_pairwise[other]))


def test_what_make_test_has_is_among_all() -> None:
    assert set(all_cells()) >= IN_MAKE_TEST
    assert {cell.moment for cell in IN_MAKE_TEST} == set(VALUES[-1])
