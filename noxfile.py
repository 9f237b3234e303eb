"""`make test-all`: the suite where a user's machine differs from ours. `make test` has the newest versions.

Every session installs the wheel that scripts/env built and runs the tests against it.
"""

import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["floor", "floor_torch"]
nox.options.error_on_missing_interpreters = True

# The oldest releases that pyproject.toml admits. NumPy's is the oldest with a wheel for the Python at hand.
NUMPY = {11: "1.23.5", 12: "1.26.0", 13: "2.1.0"}[sys.version_info.minor]
FLOOR = [f"numpy=={NUMPY}", "llvmlite==0.46.0", "ml_dtypes==0.4.0", "platformdirs==3.0.0", "rich==12.0.0"]
if sys.version_info >= (3, 13):
    FLOOR[2] = "ml_dtypes==0.5.0"  # its first release for 3.13
TEST_TOOLS = ["pytest>=8", "pytest-timeout", "pytest-xdist>=3.5", "hypothesis>=6.100", "expecttest"]


def install_and_test(session: nox.Session, *requirements: str, select: str) -> None:
    (wheel,) = Path("dist").glob("vlug-*.whl")
    session.install(*requirements, *TEST_TOOLS, str(wheel))
    session.run("python", "-m", "pip", "list", "--format=freeze", silent=False)
    env = {"PYTHONPATH": "", "EXPECT_WHEEL": "1", "VLUG_CACHE_DIR": session.create_tmp()}
    workers = ("-n", "2", "--dist", "loadfile")
    session.run("python", "-m", "pytest", "-q", *workers, "-m", select, *session.posargs, env=env)


@nox.session
def floor(session: nox.Session) -> None:
    """The core, with no framework in sight, on the oldest dependencies."""
    install_and_test(session, *FLOOR, select="not framework and not slow and not perf")


@nox.session
def floor_torch(session: nox.Session) -> None:
    """PyTorch on the oldest dependencies."""
    lines = Path("constraints.txt").read_text().splitlines()
    torch = next(line for line in lines if line.startswith("torch=="))
    build = "+cpu" if sys.platform == "linux" else ""  # PyPI's own is a CUDA build
    index = Path(".venv/torch_index").read_text().strip()  # where scripts/env found it
    where = [f"--extra-index-url={index}"] if index else []
    install_and_test(session, *where, *FLOOR, torch + build, select="framework and not slow and not perf")
