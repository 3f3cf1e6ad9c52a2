"""bm25s, imported so that it does not find JAX.

It calls JAX as soon as it is imported, and JAX then takes three quarters of a GPU's memory, whether
anything is computed there or not. Ranking here does not use bm25s' JAX functions.
"""

import sys

_jax = sys.modules.pop("jax", None)
sys.modules["jax"] = None  # type: ignore[assignment]  # an import of it is an ImportError
try:
    import bm25s as bm25s
    import bm25s.stopwords  # noqa: F401  # an attribute of bm25s
finally:
    del sys.modules["jax"]
    if _jax is not None:
        sys.modules["jax"] = _jax
