"""Initial rows are a pure function of the initializer, its seed and the row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from engine_storage import MakeVariable
from numpy.typing import NDArray
from programs import run_program

import embstore as es
from embstore import initializers
from embstore.errors import InvalidArgumentError

RANDOM = [
    initializers.RandomUniform,
    initializers.RandomNormal,
    initializers.TruncatedNormal,
    initializers.GlorotUniform,
    initializers.GlorotNormal,
    initializers.HeUniform,
    initializers.HeNormal,
    initializers.LecunUniform,
    initializers.LecunNormal,
]
# The standard deviation of each at shape (4096, 16). The mean is 0.
SPREADS = {
    "RandomUniform": 0.05 / np.sqrt(3),
    "RandomNormal": 0.05,
    "TruncatedNormal": 0.05 * 0.87962566,
    "GlorotUniform": np.sqrt(2 / (4096 + 16)),
    "GlorotNormal": np.sqrt(2 / (4096 + 16)),
    "HeUniform": np.sqrt(2 / 4096),
    "HeNormal": np.sqrt(2 / 4096),
    "LecunUniform": np.sqrt(1 / 4096),
    "LecunNormal": np.sqrt(1 / 4096),
}

Make = Callable[..., initializers.Initializer]


@pytest.mark.parametrize("make", RANDOM)
def test_a_seed_gives_the_same_rows_every_time(make: Make) -> None:
    one, again, other = (make(seed=seed)((50, 7)) for seed in (3, 3, 4))
    assert one.dtype == np.float32
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_a_seed_gives_the_same_rows_in_every_process() -> None:
    program = (
        "import embstore as es; "
        "print(es.initializers.TruncatedNormal(seed=9)((2, 3)).tobytes().hex())"
    )
    there = run_program(program)
    here = initializers.TruncatedNormal(seed=9)((2, 3)).tobytes().hex()
    assert there.stdout.strip() == here


def test_bounds_may_be_the_same_number_whatever_its_float32_is() -> None:
    for bound in (0.7, 0.01, -0.05):
        rows = initializers.RandomUniform(bound, bound)((1, 3))
        assert (rows == np.float32(bound)).all()


def test_the_rows_of_a_seed_never_change() -> None:
    rows = initializers.RandomUniform(0.0, 1.0, seed=42)((1, 3))
    np.testing.assert_array_equal(
        rows, np.array([[0.3745401188473625, 0.9507143064099162, 0.7319939418114051]], np.float32)
    )


@pytest.mark.parametrize(
    "make",
    [initializers.RandomUniform, initializers.RandomNormal, initializers.TruncatedNormal],
)
def test_a_row_doesnt_depend_on_how_many_follow_it(make: Make) -> None:
    np.testing.assert_array_equal(make(seed=1)((1000, 5))[:7], make(seed=1)((7, 5)))


@pytest.mark.parametrize("make", RANDOM)
def test_values_spread_as_their_name_says(make: Make) -> None:
    values = make(seed=0)((4096, 16)).astype(np.float64)
    spread = SPREADS[make.__name__]
    assert abs(values.mean()) < 0.02 * spread
    assert values.std() == pytest.approx(spread, rel=0.02)


def test_a_truncated_normal_ends_at_two_standard_deviations() -> None:
    values = initializers.TruncatedNormal(mean=1.0, stddev=2.0)((4096, 4))
    assert -3.0 <= values.min() < -2.9
    assert 4.9 < values.max() <= 5.0


def test_constant_takes_a_number_a_row_or_a_table() -> None:
    assert (initializers.Constant(2)((4, 3)) == 2).all()
    np.testing.assert_array_equal(initializers.Constant([1, 2, 3])((2, 3)), [[1, 2, 3], [1, 2, 3]])
    table = np.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(initializers.Constant(table)((4, 3)), table)


def test_a_table_of_another_size_says_which_size_would_do(make_variable: MakeVariable) -> None:
    table = initializers.Constant(np.ones((8, 3)))
    with pytest.raises(InvalidArgumentError, match=r"default_value_dim=4096"):
        make_variable(initializer=table)
    with pytest.raises(InvalidArgumentError, match=r"embedding_dim=4 .*\(8, 4\)"):
        make_variable(dim=4, init=es.InitializerOption(table, default_value_dim=8))


def test_any_callable_of_a_shape_is_an_initializer(make_variable: MakeVariable) -> None:
    var = make_variable(initializer=lambda shape: np.full(shape, 3))
    assert (var.lookup([1]) == 3).all()


@pytest.mark.parametrize(
    ("initializer", "message"),
    [
        (initializers.Constant, "initializer is the class Constant, which needs arguments"),
        (np.ones((8, 3)), r"initializers\.Constant"),
        (3.0, "initializer must be"),
        (lambda shape: np.ones(shape[1]), r"initializer must return .*\(4096, 3\)"),
        (lambda shape: np.full(shape, "one"), "initializer must return numbers"),
        (initializers.Constant("one"), "value must be numbers"),
    ],
)
def test_an_object_that_is_no_initializer_is_refused(
    make_variable: MakeVariable, initializer: object, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make_variable(initializer=initializer)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: initializers.RandomUniform(1.0, 0.0), "maxval"),
        (lambda: initializers.RandomNormal(stddev=-1.0), "stddev"),
        (lambda: initializers.TruncatedNormal(seed=-1), "seed"),
        (lambda: initializers.GlorotUniform(seed=1.5), "seed"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_that_cant_work_is_named(make: Make, argument: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{argument} must be"):
        make()


def test_constant_takes_numbers_of_types_that_numpy_lacks() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rows = initializers.Constant(np.array([1.5, -2], ml_dtypes.bfloat16))((2, 2))
    np.testing.assert_array_equal(rows, np.array([[1.5, -2]] * 2, np.float32))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: initializers.Constant(1e39), "value must be at most 3.40282e"),
        (lambda: initializers.Constant([1, 10**400, 1]), "value must be at most 3.40282e"),
        (lambda: initializers.Constant(1j), "value must be numbers, got complex128"),
        (lambda: initializers.Constant(["1"] * 3), "value must be numbers, got <U1"),
        (lambda: initializers.Constant(None), "value must be numbers, got object"),  # type: ignore[arg-type]
        (lambda: initializers.Constant([[1], [2, 3]]), "value must be a regular array"),
        (lambda: initializers.RandomUniform(-1e39, 0), "minval must be at most 3.40282e"),
        (lambda: initializers.RandomUniform(0, 1e39), "maxval must be at most 3.40282e"),
        (lambda: initializers.RandomNormal(1e39), "mean must be at most 3.40282e"),
        (lambda: initializers.RandomNormal(0, 1e39), "stddev must be at most 3.40282e"),
        (lambda: initializers.RandomNormal(0, 3e38), "stddev must be at most 3.40282e"),
        (lambda: initializers.TruncatedNormal(0, 3e38), "stddev must be at most 3.40282e"),
        (lambda: lambda shape: np.full(shape, 1e39), "values must be at most 3.40282e"),
    ],
)
def test_initial_rows_that_float32_cant_have_are_refused(
    make_variable: MakeVariable, make: Callable[[], initializers.Initializer], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make_variable(dim=3, initializer=make())


@pytest.mark.parametrize("kind", [None, *RANDOM])
def test_each_variable_has_initial_rows_of_its_own_the_same_every_time(
    make_variable: MakeVariable, kind: Make | None
) -> None:
    def values(name: str, **arguments: int) -> NDArray[np.float32]:
        var = make_variable(name=name, initializer=kind and kind(**arguments))
        return var.lookup(np.arange(4096))

    np.testing.assert_array_equal(values("user"), values("user"))
    assert (values("user") != values("item")).mean() > 0.99
    if kind is not None:
        np.testing.assert_array_equal(values("user", seed=0), values("item", seed=0))
