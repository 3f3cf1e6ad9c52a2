"""bm25s with a JAX that must not be called."""

import subprocess
import sys


def test_jax_is_neither_imported_nor_hidden(tmp_path):
    package = tmp_path / "jax"
    package.mkdir()
    (package / "__init__.py").write_text("print('imported')\n")
    (package / "lax.py").write_text("def top_k(values, k):\n    print('called')\n")
    code = "import modeling_condenser.retrieval.bm25; print('then'); import jax.lax"
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    run = subprocess.run(
        [sys.executable, "-c", f"{path}; {code}"], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["then", "imported"]
