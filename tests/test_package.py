"""The package itself: what importing it costs, what the wheel holds, that the tests meet what users get."""

import json
import os
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

import vlug

ROOT = Path(__file__).resolve().parent.parent


def run_python(code: str, *flags: str) -> str:
    """Run code in a fresh interpreter that finds vlug where this one did; return what it printed."""
    env = dict(os.environ, PYTHONPATH=str(Path(vlug.__file__).parent.parent))
    done = subprocess.run([sys.executable, *flags, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_version() -> None:
    assert vlug.__version__.count(".") == 2


def test_all_is_what_there_is() -> None:
    assert len(set(vlug.__all__)) == len(vlug.__all__)
    functional = import_module("vlug.functional")
    assert {*vlug._WHERE, *functional.__all__, "__version__"} == set(vlug.__all__)
    missing = [name for name in vlug.__all__ if not hasattr(vlug, name)]
    assert not missing


def test_import_brings_no_framework_no_compiler_no_terminal() -> None:
    loaded = json.loads(run_python("import sys, json, vlug; print(json.dumps(sorted(sys.modules)))"))
    frameworks = {"torch", "jax", "tensorflow", "keras", "mxnet"}
    heavy = {"llvmlite", "triton", "rich", "matplotlib", "sklearn"}
    assert not (frameworks | heavy) & set(loaded)


def test_import_costs_little_more_than_numpy() -> None:
    """At most 30 ms, in processor time: the best of fresh processes, for neighbours only ever add to it."""
    code = "import numpy, time; t = time.process_time(); import vlug; print(time.process_time() - t)"
    run_python(code)  # writes the byte code
    assert min(float(run_python(code)) for _ in range(7)) < 0.030


def test_names_are_loaded_when_asked_for() -> None:
    code = """
import sys, vlug
assert not {"vlug.functional", "vlug.tensor", "vlug.frontends.hooks"} & set(sys.modules)
assert set(vlug.__all__) <= set(dir(vlug))
vlug.relu
assert "vlug.functional" in sys.modules and "vlug.relu" not in sys.modules
from vlug import conv2d, ShapeError, using
try:
    vlug.conv4d
except AttributeError as e:
    print(e)
"""
    assert run_python(code) == "module 'vlug' has no attribute 'conv4d'\n"


def test_layer_shapes_are_carried_with_their_source() -> None:
    shapes = json.loads((Path(vlug.__file__).parent / "bench/data/shapes.json").read_text())
    assert shapes["source"].startswith("oneapi-src/oneDNN @ ")
    assert "Apache-2.0" in shapes["licence"]
    assert sum(layer["count"] for layer in shapes["conv"]["resnet_50"]) == 53
    for layer in (layer for layers in shapes["conv"].values() for layer in layers):
        columns = [layer[k] for k in ("in", "kernel", "stride", "dilation", "pad_l", "pad_r")]
        out = [
            (size + left + right - (kernel - 1) * dilation - 1) // stride + 1
            for size, kernel, stride, dilation, left, right in zip(*columns, strict=True)
        ]
        assert out == layer["out"], layer["name"]


@pytest.mark.skipif("EXPECT_WHEEL" not in os.environ, reason="not run by `make test`")
def test_the_suite_runs_against_the_installed_wheel() -> None:
    assert "site-packages" in Path(vlug.__file__).parts
    assert not any(Path(p or ".").resolve() == ROOT / "src" for p in sys.path)


@pytest.mark.skipif("EXPECT_WHEEL" not in os.environ, reason="not run by `make test`, which builds the wheel")
def test_wheel_holds_the_package_and_nothing_else() -> None:
    (wheel,) = (ROOT / "dist").glob("vlug-*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")  # no compiler was needed
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"vlug-{vlug.__version__}.dist-info/"
    assert {info + "licenses/LICENSE", info + "entry_points.txt"} <= names
    assert {"vlug/py.typed", "vlug/bench/data/shapes.json"} <= names
    assert [n for n in names if not n.startswith(("vlug/", info))] == []
    assert [n for n in names if "test" in Path(n).name and not n.startswith("vlug/testing")] == []
    assert {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*.py")} <= names
    entries = zipfile.ZipFile(wheel).read(info + "entry_points.txt").decode()
    assert "vlug = vlug.__main__:main" in entries
    assert "[torch.backends]\nvlug = vlug.frontends.torch:autoload" in entries
