"""Every eager function with one argument wrong: an error that names it, or a result; never anything else."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import vlug
from bad_calls import CALLS, spoilt
from vlug import functional
from vlug.errors import BadInput, VlugError

#: What no function takes in place of an array.
NEVER = {"text", "object", "complex", "objects"}


def test_every_function_is_here() -> None:
    assert set(CALLS) == set(functional.__all__)
    for name, arguments in CALLS.items():
        known = set(inspect.signature(getattr(vlug, name)).parameters)
        assert set(arguments) <= known, name


@pytest.mark.parametrize("name", sorted(CALLS))
def test_valid(name: str) -> None:
    made = getattr(vlug, name)(**{k: v.copy() if hasattr(v, "copy") else v for k, v in CALLS[name].items()})
    for a in made if isinstance(made, (tuple, list)) else (made,):
        assert a is None or isinstance(a, np.ndarray)


@pytest.mark.parametrize("name", sorted(CALLS))
@pytest.mark.filterwarnings("ignore")
def test_one_argument_wrong(name: str) -> None:
    refused = 0
    for argument, what, arguments in spoilt(name):
        label = f"{name}({argument}: {what})"
        try:
            getattr(vlug, name)(**arguments)
        except VlugError as e:
            refused += 1
            assert str(e).strip(), label  # noqa: PT017
            if isinstance(CALLS[name][argument], np.ndarray) and what in NEVER:
                assert argument in str(e), f"{label} does not name it: {e}"  # noqa: PT017
                assert isinstance(e, BadInput), label  # noqa: PT017
        except MemoryError:
            continue
        except Exception as e:
            raise AssertionError(f"{label}: {type(e).__name__}: {e}") from e
        else:
            assert not (isinstance(CALLS[name][argument], np.ndarray) and what in NEVER), f"{label} was taken"
    assert refused > 3


OUTS = [n for n in sorted(CALLS) if "out" in inspect.signature(getattr(vlug, n)).parameters]


@pytest.mark.parametrize("name", OUTS)
def test_a_wrong_out(name: str) -> None:
    """Refused before anything is written: wrong dims, types, no array, read-only, over an input."""
    f = getattr(vlug, name)
    arguments = {k: v.copy() if hasattr(v, "copy") else v for k, v in CALLS[name].items()}
    made = f(**arguments)
    y = made[0] if isinstance(made, tuple) else made
    good = np.zeros_like(y)
    f(**arguments, out=good)
    np.testing.assert_array_equal(good, y)
    locked = np.zeros_like(y)
    locked.flags.writeable = False
    wrong = [np.zeros((*y.shape, 1), y.dtype), y.astype(np.float16), y.astype(np.complex64), "abc", locked, 7,
             np.broadcast_to(np.zeros((), y.dtype), y.shape)]  # fmt: skip
    if y.size > 1:
        wrong.append(np.zeros(y.size + 1, y.dtype)[1:].reshape(y.shape)[::-1])
    for bad in wrong:
        before = np.array(bad) if isinstance(bad, np.ndarray) else None
        if y.size == 1 and bad is wrong[6]:
            continue  # one element broadcast to one element is an array like any other
        try:
            f(**arguments, out=bad)
        except VlugError as e:
            assert "out" in str(e) or name in str(e), (name, str(e))  # noqa: PT017
            if before is not None:
                np.testing.assert_array_equal(bad, before)
        else:
            # negative strides may be served
            assert isinstance(bad, np.ndarray)
            assert min(bad.strides, default=0) < 0
            np.testing.assert_array_equal(bad, y)
