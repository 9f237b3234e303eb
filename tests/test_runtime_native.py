"""The native plan runner, its workspace pool, thread pools and forks."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from guarded import copy, empty
from vlug import config
from vlug.codegen import jit, native
from vlug.codegen.ir import Kernel
from vlug.codegen.isa import runnable
from vlug.errors import ExecutionError
from vlug.runtime import device, threads
from vlug.runtime.threads import SERIAL, Env

pytestmark = pytest.mark.skipif(not runnable(), reason="this machine runs no kernel ISA")
ISA = runnable()[-1] if runnable() else None


def scale(k: Kernel):
    """y = a x + b, b may be absent."""
    n, has_b = k.size("n"), k.size("has_b")
    a = k.scalar("a")
    x, b, y = k.view(n), k.view(n), k.view(n)
    for lo, hi in k.chunk(n):
        row = k.scratch(n)
        for i in k.vectors(lo, hi):
            row[i] = x[i] * a
        with k.when(has_b.ne(0)):
            for i in k.vectors(lo, hi):
                row[i] = row[i] + b[i]
        for i in k.vectors(lo, hi):
            y[i] = row[i]


def parts(k: Kernel):
    """Which part took a unit, and how often it was taken."""
    n = k.size("n")
    who, times, size = k.view(n), k.view(n), k.view(n)
    for lo, hi in k.chunk(n):
        for i in k.range(lo, hi):
            who[i] = k.to_float(k.part)
            times[i] = times[i] + 1.0
            size[i] = k.to_float(hi - lo)


def step(program, values, tensors):
    return native.Step(program.address, program.args(values), tensors, program.shared_bytes(values),
                       program.part_bytes(values))


def test_a_plan_of_several_steps_with_temporaries_and_absent_tensors():
    p, n = jit.compiled(scale, ISA), 1000
    x, b, y = copy(np.arange(n, dtype=np.float32)), copy(np.ones(n, np.float32)), empty(n, np.float32)
    first, second = native.temporary(0), native.temporary(4096)
    plan = native.plan_array([
        step(p, {"n": n, "has_b": 1, "a": 2.0}, (0, 1, first)),
        step(p, {"n": n, "has_b": 0, "a": 3.0}, (first, native.NULL_TENSOR, second)),
        step(p, {"n": n, "has_b": 1, "a": 1.0}, (second, first, 2)),
    ], temp_bytes=8192)
    native.run(plan, [x.ctypes.data, b.ctypes.data, y.ctypes.data])
    np.testing.assert_array_equal(y, 4 * (2 * x + 1))


def test_an_empty_plan():
    native.run(native.plan_array([]), [])


def breaks(k: Kernel):
    n = k.size("n")
    y = k.view(n)
    for i in k.parallel(n):
        y[i] = 1.0
    k.error_if(n.eq(3), 17)


def test_a_failing_step_ends_the_plan_and_gives_its_memory_back():
    p = jit.compiled(breaks, ISA)
    native.trim(1 << 27)
    y = np.zeros((3, 8), np.float32)
    steps = [step(p, {"n": n}, (i,)) for i, n in enumerate((2, 3, 4))]
    plan = native.plan_array(steps, temp_bytes=4096)
    with pytest.raises(ExecutionError, match="code 17"):
        native.run(plan, [y[i].ctypes.data for i in range(3)])
    assert y.sum(1).tolist() == [2, 3, 0]
    assert native.trim() == 4096 * 2  # one buffer and its head, not leaked


def test_no_memory_is_an_error():
    p = jit.compiled(breaks, ISA)
    y = np.zeros(2, np.float32)
    s = step(p, {"n": 2}, (0,))
    huge = native.Step(s.address, s.args, s.tensors, shared_bytes=1 << 60)
    with pytest.raises(ExecutionError, match="no memory for a workspace of 1152921504606846976 bytes"):
        native.run(native.plan_array([huge]), [y.ctypes.data])
    assert y.sum() == 0


def test_workspace_is_kept_up_to_the_limit():
    p = jit.compiled(breaks, ISA)
    y = np.zeros(2, np.float32)
    s = step(p, {"n": 2}, (0,))

    def run(nbytes):
        native.run(native.plan_array([native.Step(s.address, s.args, s.tensors, nbytes)]), [y.ctypes.data])
        return native.trim()

    native.trim(1 << 20)
    assert run(100_000) == 106496
    assert run(50_000) == 106496  # the same buffer
    assert run(300_000) == 307200  # a larger one in its place
    assert run(2 << 20) == 0  # too large to keep, and the small one went with it
    assert native.trim(1 << 27) == 0


def test_four_python_threads_at_once():
    p, n, wrong = jit.compiled(scale, ISA), 5000, []

    def work(seed):
        x = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
        y = np.empty_like(x)
        for i in range(200):
            native.call(p, [x.ctypes.data, 0, y.ctypes.data], {"n": n, "has_b": 0, "a": float(i)})
            if not np.array_equal(y, x * np.float32(i)):
                wrong.append((seed, i))

    pool = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for t in pool: t.start()
    for t in pool: t.join()
    assert wrong == []


def test_four_python_threads_compile_at_once():
    jit._loaded.clear()
    found = []
    pool = [threading.Thread(target=lambda: found.append(jit.compiled(parts, ISA).address)) for _ in range(4)]
    for t in pool: t.start()
    for t in pool: t.join()
    assert len(found) == 4
    assert len(set(found)) == 1


def environments():
    """Every pool there is here."""
    yield "own", native.env()
    alone = native._loaded(native.ALONE, ("vlug_parallel_alone",))["vlug_parallel_alone"]
    yield "alone", Env(parallel_for=alone, threads=3)
    for path in threads._loaded_runtimes():
        pool = threads._from_library("", path)
        if pool:
            f = native._loaded(native.GOMP, ("vlug_parallel_gomp",), {
                "GOMP_parallel": pool.parallel, "omp_get_thread_num": pool.thread_num,
                "omp_get_num_threads": pool.num_threads})["vlug_parallel_gomp"]
            for n in (1, 2, 5):
                yield f"{os.path.basename(path)} {n}", Env(parallel_for=f, threads=n)
                yield f"{os.path.basename(path)} {n} serial", Env(parallel_for=f, threads=n, flags=SERIAL)


def check_parts(env, n, count):
    p = jit.compiled(parts, ISA)
    who, times, size = np.full(n, -1, np.float32), np.zeros(n, np.float32), np.zeros(n, np.float32)
    native.call(p, [a.ctypes.data for a in (who, times, size)], {"n": n}, env)
    T = min(count, n)
    expected = np.concatenate([[t] * ((t + 1) * n // T - t * n // T) for t in range(T)] if n else [[]])
    np.testing.assert_array_equal(times, 1)
    np.testing.assert_array_equal(who, expected)


def test_every_pool_runs_each_part_once():
    seen = 0
    for _, env in environments():
        seen += 1
        for n in (0, 1, 2, 3, 4, 5, 17, 1000):
            check_parts(env, n, env.threads)
    assert seen >= 2


def test_threads_are_those_asked_for(monkeypatch):
    monkeypatch.delenv("VLUG_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.thread_count() == 3
    with config.THREADS.using(5):
        assert threads.thread_count() == 5
        if threads.current_pool().parallel:
            check_parts(native.env(), 100, 5)
    monkeypatch.setenv("VLUG_THREADS", "2")
    assert threads.thread_count() == 2
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.delenv("VLUG_THREADS")
    assert threads.thread_count() == device.usable_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.framework
def test_torch_lends_its_threads():
    torch = pytest.importorskip("torch")
    lib = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
    if not hasattr(lib, "torch_parallel_for"):
        pytest.skip("this torch has no torch_parallel_for")
    a, b = (ctypes.cast(getattr(lib, s), ctypes.c_void_p).value
            for s in ("torch_parallel_for", "torch_get_num_threads"))
    before = torch.get_num_threads()
    try:
        for n in (1, 2, 4):
            torch.set_num_threads(n)
            for cap in (0, 1, 3):
                for count in (0, 1, 5, 100):
                    check_parts(native.torch_env(a, b, cap), count, min(n, cap or n))
    finally:
        torch.set_num_threads(before)


FORK = """
    import os, sys, signal
    sys.path.insert(0, {tests!r})
    {prelude}
    import numpy as np
    from test_runtime_native import check_parts, native, threads, jit, scale, ISA
    env = native.env()
    check_parts(env, 100, env.threads)          # the pool's threads exist now
    def child(depth):
        signal.alarm(20)                         # a hang ends here
        assert threads.forked() and native.env().threads == 1
        check_parts(env, 100, env.threads)       # an Env of before the fork
        check_parts(native.env(), 100, 1)
        p = jit.compiled(scale, ISA)             # compile and load in the child
        x, y = np.ones(99, np.float32), np.zeros(99, np.float32)
        native.call(p, [x.ctypes.data, 0, y.ctypes.data], dict(n=99, has_b=0, a=4.0))
        assert y.sum() == 396
        if depth:
            fork(depth - 1)
    def fork(depth):
        pid = os.fork()
        if pid == 0:
            try:
                child(depth)
            except BaseException:
                import traceback; traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    fork(1)
    check_parts(env, 100, env.threads)          # the parent goes on in parallel
    assert not threads.forked() and env.threads > 1
    print("fine")
"""


@pytest.mark.parametrize("prelude", ["", "import torch; torch.ones(2000, 2000) @ torch.ones(2000, 2000)"],
                         ids=["plain", "torch"])
def test_a_forked_child_runs_on_one_thread_and_never_hangs(prelude):
    if prelude:
        pytest.importorskip("torch")
    if not threads.current_pool().parallel:
        pytest.skip("no thread pool here")
    code = textwrap.dedent(FORK.format(tests=os.path.dirname(__file__), prelude=prelude))
    r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                       env={**os.environ, "VLUG_THREADS": "2"})
    assert r.stdout.strip() == "fine", r.stderr


def test_a_team_smaller_than_asked_still_runs_every_part():
    if not threads.current_pool().parallel:
        pytest.skip("no thread pool here")
    code = textwrap.dedent(f"""
        import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})
        from test_runtime_native import check_parts, native
        assert native.env().threads == 8
        for n in (1, 5, 8, 100): check_parts(native.env(), n, 8)
        print("fine")""")
    r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                       env={**os.environ, "VLUG_THREADS": "8", "OMP_THREAD_LIMIT": "3"})
    assert r.stdout.strip() == "fine", r.stderr


def test_the_pool_says_what_it_is():
    text = threads.describe()
    assert text.startswith(f"{native.env().threads} thread")
    assert "OpenMP" in text or "libgomp" in text or "one thread" in text
