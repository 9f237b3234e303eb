"""What the README and the docs show is what happens: every Python example in them runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vlug

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "README.nl.md", *(ROOT / "docs").glob("*.md")])


def python_blocks(text: str) -> list[str]:
    """The ```python blocks of a page, in order. A block marked ```python skip shows a fragment."""
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)


def run(code: str, cwd: Path) -> str:
    env = dict(os.environ, PYTHONPATH=str(Path(vlug.__file__).parent.parent))
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p.read_text())], ids=lambda p: p.name)
def test_examples_run(page: Path, tmp_path: Path) -> None:
    """The blocks of one page run in order, in one namespace, as a reader would type them."""
    code = "\n".join(python_blocks(page.read_text()))
    if re.search(r"^\s*(import|from) torch\b", code, flags=re.M):
        pytest.importorskip("torch")
    run(code, tmp_path)


def test_example_explains_a_refusal(tmp_path: Path) -> None:
    said = run((ROOT / "examples/explain_a_refusal.py").read_text(), tmp_path)
    assert re.search(r"cpu\.conv_\w+: ", said)  # an engine and its reason


def test_example_of_eager_calls(tmp_path: Path) -> None:
    said = run((ROOT / "examples/functional_numpy.py").read_text(), tmp_path)
    error = re.search(r"^error (\S+)$", said, flags=re.M)
    assert error is not None
    assert float(error[1]) < 1e-4
    assert "refused: conv_fprop" in said or "refused: conv2d" in said


def test_the_two_readmes_name_the_same_commands() -> None:
    def commands(page: str) -> list[str]:
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), flags=re.M | re.S)
        lines = [line for kind, block in blocks if kind in ("", "sh") for line in block.splitlines()]
        return [line.split("#")[0].strip() for line in lines]

    assert set(commands("README.nl.md")) <= set(commands("README.md"))
