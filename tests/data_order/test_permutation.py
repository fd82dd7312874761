"""A keyed shuffle, one index at a time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_resume.data_order import Permutation


def shuffled(size: int, *key: int | str) -> list[int]:
    permutation = Permutation(size, key)
    return [permutation(index) for index in range(size)]


def chi_square(counts: Iterable[int], cells: int) -> float:
    """Distance from a uniform spread; about `cells` for a good shuffle, with a deviation of sqrt(2 * cells)."""
    values = list(counts)
    expected = sum(values) / cells
    return sum((value - expected) ** 2 for value in values) / expected + (cells - len(values)) * expected


@pytest.mark.parametrize("size", range(201))
def test_every_small_size_is_a_bijection(size: int) -> None:
    assert sorted(shuffled(size, "key", size)) == list(range(size))


@settings(max_examples=25, deadline=None, database=None)
@given(st.integers(201, 20_000), st.integers())
def test_larger_sizes_are_bijections(size: int, seed: int) -> None:
    assert sorted(shuffled(size, seed)) == list(range(size))


@settings(max_examples=50, deadline=None, database=None)
@given(st.integers(10**9, 10**15), st.integers())
def test_huge_sizes_stay_in_range_and_do_not_repeat(size: int, seed: int) -> None:
    permutation = Permutation(size, (seed,))
    images = [permutation(index) for index in itertools.chain(range(100), range(size - 100, size))]
    assert len(set(images)) == 200
    assert all(0 <= image < size for image in images)


@pytest.mark.parametrize("index", [-1, 10, 10**30])
def test_an_index_outside_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match="outside a permutation of 10"):
        Permutation(10, "key")(index)


def test_an_empty_permutation_has_no_index() -> None:
    with pytest.raises(IndexError):
        Permutation(0, "key")(0)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 0 or more"):
        Permutation(-1, "key")


def test_the_order_of_a_key_never_changes() -> None:
    """Were this to change between versions, a run that is resumed would repeat some samples and miss others."""
    assert shuffled(12, 7, 0, 0) == [8, 0, 3, 11, 5, 7, 10, 2, 4, 6, 9, 1]
    assert [Permutation(10**9, (7, 0, 0))(index) for index in range(3)] == [907746436, 658549048, 191191780]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param((1, 2), (2, 1), id="order of the parts"),
        pytest.param((1, 23), (12, 3), id="where parts end"),
        pytest.param((1,), ("1",), id="number or text"),
        pytest.param(("a", ""), ("a",), id="empty part"),
        pytest.param(("1:a,", "b"), ("1:a,b",), id="text that looks like an encoding"),
        pytest.param((1, 0), (0, 1), id="next seed or next epoch"),
        pytest.param((-1,), (1,), id="sign"),
        pytest.param((2**64,), (0,), id="more than 64 bits"),
    ],
)
def test_keys_that_differ_give_orders_that_have_nothing_in_common(
    one: tuple[int | str, ...], other: tuple[int | str, ...]
) -> None:
    same = sum(a == b for a, b in zip(shuffled(2000, *one), shuffled(2000, *other), strict=True))
    assert same < 10  # 1 is expected by chance


def test_a_text_is_the_key_with_one_part() -> None:
    text = Permutation(50, "key")
    assert [text(index) for index in range(50)] == shuffled(50, "key")


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_order_of_a_few_samples_is_as_likely_as_any_other(size: int) -> None:
    orders = list(itertools.permutations(range(size)))
    seen = Counter(tuple(shuffled(size, seed)) for seed in range(40 * len(orders)))
    cells = len(orders)
    assert chi_square(seen.values(), cells) < cells + 4 * (2 * cells) ** 0.5


def test_a_sample_may_come_anywhere() -> None:
    size, bins = 1000, 20
    for index in (0, 1, 499, 999):
        seen = Counter(Permutation(size, (seed,))(index) * bins // size for seed in range(2000))
        assert chi_square(seen.values(), bins) < bins + 4 * (2 * bins) ** 0.5


@pytest.mark.parametrize("size", [10_000, 100_000])
def test_neighbours_do_not_stay_neighbours(size: int) -> None:
    bins = 50
    order = shuffled(size, "neighbours")
    distances = Counter((b - a) % size * bins // size for a, b in itertools.pairwise(order))
    assert chi_square(distances.values(), bins) < bins + 4 * (2 * bins) ** 0.5


@pytest.mark.parametrize("size", [10_000, 100_000])
def test_two_epochs_are_independent(size: int) -> None:
    bins = 50
    pairs = zip(shuffled(size, 3, 0), shuffled(size, 3, 1), strict=True)
    distances = Counter((b - a) % size * bins // size for a, b in pairs)
    assert chi_square(distances.values(), bins) < bins + 4 * (2 * bins) ** 0.5
