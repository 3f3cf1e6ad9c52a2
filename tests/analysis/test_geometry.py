"""Alignment and uniformity: by hand, and by brute force."""

import math

import numpy as np
import pytest

from modeling_condenser.analysis.geometry import alignment, uniformity


def test_alignment_by_hand() -> None:
    # At right angles the squared distance is 2, in one direction 0, opposite 4.
    first = np.array([[3.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    second = np.array([[0.0, 5.0], [7.0, 7.0], [0.0, -1.0]])
    assert alignment(first, second) == pytest.approx((2 + 0 + 4) / 3)


def test_uniformity_by_hand() -> None:
    # A right angle, and the same vector again: squared distances 2, 0 and 2.
    vectors = np.array([[1.0, 0.0], [0.0, 4.0], [2.0, 0.0]])
    assert uniformity(vectors) == pytest.approx(math.log((2 * math.exp(-4) + 1) / 3))


def test_vectors_that_are_all_alike_are_perfectly_aligned_and_not_at_all_uniform() -> None:
    vectors = np.full((5, 3), 0.7, dtype=np.float32)
    assert alignment(vectors, vectors) == 0.0
    assert uniformity(vectors) == pytest.approx(0.0, abs=1e-12)


def test_both_equal_brute_force() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(2, 20, 6)).astype(np.float32)
    squares, kernels = [], []
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        a_length, b_length = math.hypot(*a), math.hypot(*b)
        squares.append(sum((p / a_length - q / b_length) ** 2 for p, q in zip(a, b, strict=True)))
    for i in range(20):
        for j in range(i):
            a, b = x[i] / math.hypot(*x[i]), x[j] / math.hypot(*x[j])
            kernels.append(math.exp(-2 * sum((p - q) ** 2 for p, q in zip(a, b, strict=True))))
    assert alignment(x, y) == pytest.approx(sum(squares) / 20, rel=1e-6)
    assert uniformity(x) == pytest.approx(math.log(sum(kernels) / len(kernels)), rel=1e-6)


def test_what_has_no_direction_or_no_other_is_refused() -> None:
    with pytest.raises(ValueError, match="Vector 1 is zero"):
        alignment(np.array([[1.0, 0.0], [0.0, 0.0]]), np.ones((2, 2)))
    with pytest.raises(ValueError, match="pairs of vectors, but 1 came"):
        uniformity(np.ones((1, 4)))
