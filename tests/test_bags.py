"""The algebra: an operation on kernels is the same operation on features."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangentless.bags import (
    Bag,
    Concat,
    Downsample,
    Embed,
    Sum,
    diagonal_norms,
    inner_products,
    tensor_power,
)
from tangentless.errors import InputError

LABELS = st.one_of(st.integers(-99, 99), st.text("abcdef", min_size=1, max_size=3), st.tuples(st.integers(0, 9)))
TRUNCATED_GAUSSIAN = tuple(math.exp(-1.0) / math.factorial(k) for k in range(19))  # the rest is below 1e-17


def apply_to_features(chain, bag):
    for operation in chain:
        bag = operation.on_features(bag)
    return bag


def self_norms(chain, bag):
    kernel = inner_products(bag, bag)
    norms = [diagonal_norms(kernel)]
    for operation in chain:
        kernel = operation.on_kernel(kernel, norms[-1], norms[-1])
        norms.append(diagonal_norms(kernel))
    return norms


def apply_to_kernel(chain, left, right, left_norms, right_norms):
    kernel = inner_products(left, right)
    for operation, a, b in zip(chain, left_norms, right_norms, strict=False):
        kernel = operation.on_kernel(kernel, a, b)
    return kernel


def polynomial(series):
    return lambda c: sum(weight * c**k for k, weight in enumerate(series))


@st.composite
def bags_and_chains(draw):
    """Two bags over one random index set, and operations that fit one after the other."""
    index = tuple(draw(st.lists(LABELS, min_size=1, max_size=6, unique=True)))
    dimension = draw(st.integers(1, 2))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    left, right = generator.standard_normal((2, len(index), dimension))
    left[generator.random(len(index)) < 0.2] = 0.0
    bags = Bag(index, left), Bag(index, right)
    chain = []
    for place in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["concat", "downsample", "embed"]))
        targets = [f"{kind}{place}-{j}" for j in range(draw(st.integers(1, 4)))]
        members = st.sampled_from(index)
        if kind == "concat" and dimension <= 4:
            size = draw(st.integers(1, 2))
            subset = st.lists(st.one_of(st.none(), members), min_size=size, max_size=size)
            scale = draw(st.sampled_from([1.0, 0.25]))
            chain.append(Concat(index, {target: draw(subset) for target in targets}, scale))
            dimension, index = dimension * size, tuple(targets)
        elif kind == "downsample":
            subset = st.lists(members, min_size=1, max_size=5)
            chain.append(Downsample(index, {target: draw(subset) for target in targets}))
            index = tuple(targets)
        elif dimension <= 4:
            series = draw(st.sampled_from([(0.0, 1.0), (0.0, 0.0, 1.0), (0.2, 0.3, 0.5)]))
            chain.append(Embed(polynomial(series), keep_norms=draw(st.booleans()), series=series))
            dimension = sum(math.comb(dimension + k - 1, k) for k, weight in enumerate(series) if weight)
    return (*bags, chain)


@given(bags_and_chains())
@settings(max_examples=150, deadline=None)
def test_chains_on_kernels_agree_with_chains_on_features(case):
    left, right, chain = case
    explicit = inner_products(apply_to_features(chain, left), apply_to_features(chain, right))
    implicit = apply_to_kernel(chain, left, right, self_norms(chain, left), self_norms(chain, right))
    np.testing.assert_allclose(implicit, explicit, atol=1e-11 * max(1.0, np.abs(explicit).max()))


@given(bags_and_chains())
@settings(max_examples=50, deadline=None)
def test_norms_on_the_way_are_those_of_the_features(case):
    bag, _, chain = case
    norms = self_norms(chain, bag)
    for place in range(len(chain) + 1):
        explicit = np.linalg.norm(apply_to_features(chain[:place], bag).features, axis=1)
        # The square root of a rounding error of 1e-15.
        np.testing.assert_allclose(norms[place], explicit, atol=1e-7 * max(1.0, explicit.max()))


@given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_sums_on_kernels_agree_with_features_side_by_side(weights, seed):
    generator, index = np.random.default_rng(seed), (0, 1, 2)
    sides = [[Bag(index, generator.standard_normal((3, 1 + k))) for k in range(len(weights))] for _ in range(2)]
    add = Sum(tuple(weights))
    explicit = inner_products(*(add.on_features(side) for side in sides))
    implicit = add.on_kernels([inner_products(a, b) for a, b in zip(*sides, strict=True)])
    np.testing.assert_allclose(implicit, explicit, atol=1e-12 * max(1.0, np.abs(explicit).max()))


def test_gaussian_embedding_agrees_with_its_truncated_features(rng):
    embed = Embed(lambda c: np.exp(c - 1), series=TRUNCATED_GAUSSIAN)
    left, right = (Bag(tuple(range(4)), rng.standard_normal((4, 2))) for _ in range(2))
    explicit = inner_products(embed.on_features(left), embed.on_features(right))
    implicit = apply_to_kernel([embed], left, right, self_norms([embed], left), self_norms([embed], right))
    np.testing.assert_allclose(implicit, explicit, rtol=1e-13)


@given(st.integers(1, 4), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_tensor_powers_have_powers_as_inner_products(dimension, degree, seed):
    x, z = np.random.default_rng(seed).standard_normal((2, 1, dimension))
    assert float(tensor_power(x, degree)[0] @ tensor_power(z, degree)[0]) == pytest.approx(
        float(x[0] @ z[0]) ** degree, rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bag((0, 1), np.zeros((3, 2))), "2 indices"),
        (lambda: Bag((0, 0), np.zeros((2, 2))), "distinct"),
        (lambda: Concat((0, 1), {"a": (0,), "b": (0, 1)}), "one size"),
        (lambda: Downsample((0, 1), {"a": ()}), "empty"),
        (lambda: Embed(np.arccos).on_features(Bag((0,), np.ones((1, 1)))), "kernels only"),
    ],
)
def test_bad_bags_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
