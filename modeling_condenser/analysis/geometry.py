"""How vectors lie on the sphere: vectors in, alignment and uniformity out.

Wang & Isola (2020), "Understanding Contrastive Representation Learning through Alignment and
Uniformity on the Hypersphere", with their exponents alpha = 2 and t = 2. Both are better lower; a
retriever needs both, and vectors that are all alike have perfect alignment and no uniformity.
"""

import numpy as np


def alignment(first: np.ndarray, second: np.ndarray) -> float:
    """Mean of |x - y|^2 over pairs that belong together, of unit vectors: 0 to 4.

    Args:
        first: (N, D), of any length but 0.
        second: (N, D), their partners.

    Raises:
        ValueError: a vector is zero.
    """
    difference = _normalised(first) - _normalised(second)
    return float((difference**2).sum(axis=1).mean())


def uniformity(vectors: np.ndarray) -> float:
    """log of the mean of exp(-2 |x - y|^2) over all pairs of unit vectors: -8 to 0.

    Args:
        vectors: (N, D), N at least 2, of any length but 0.

    Raises:
        ValueError: a vector is zero, or there is one only.
    """
    if len(vectors) < 2:
        raise ValueError(f"Uniformity is over pairs of vectors, but {len(vectors)} came: give 2.")
    unit = _normalised(vectors)
    rows, columns = np.triu_indices(len(unit), k=1)
    # |x - y|^2 of unit vectors; rounding may take it below 0.
    squares = np.maximum(2 - 2 * (unit @ unit.T)[rows, columns], 0)
    return float(np.log(np.exp(-2 * squares).mean()))


def _normalised(vectors: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise ValueError(
            f"Vector {int(lengths.argmin())} is zero, so it has no direction: expected the vectors "
            "of texts; look at the model's weights."
        )
    return vectors / lengths
