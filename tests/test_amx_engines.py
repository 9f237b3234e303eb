"""The bf16 engines on AMX and AVX512-BF16: samples, block sizes, permission, tiles released on every path."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

import programs
from vlug import config
from vlug.codegen import isa as isas
from vlug.codegen import jit, native
from vlug.codegen.tiles import Tiles
from vlug.dtypes import BF16, F32
from vlug.engines.base import EngineConfig
from vlug.engines.cpu import amx_kernels
from vlug.engines.cpu.amx_conv import PairConv
from vlug.engines.cpu.amx_matmul import PairMatmul
from vlug.errors import NotSupported
from vlug.graph import Graph
from vlug.ops.conv import ConvDgrad, ConvFprop
from vlug.ops.matmul import Matmul
from vlug.runtime import device
from vlug.runtime.device import FAKE, ISA_NEEDS, cpu_features, tiles_allowed
from vlug.testing import check, derive

CONV, MATMUL = PairConv(), PairMatmul()
ISAS = [isas.AVX512_BF16, isas.AMX]


def runs(name: str) -> bool:
    """Whether this machine runs such code."""
    return cpu_features().issuperset(ISA_NEEDS[name]) and (name != "amx" or tiles_allowed())


def on_this_machine(name: str):
    return pytest.param(FAKE[name], id=name, marks=[
        pytest.mark.isa, pytest.mark.skipif(not runs(name), reason=f"this machine does not run {name} code")])


devices = pytest.mark.parametrize("on", [on_this_machine("avx512_bf16"), on_this_machine("amx")])


def in_bf16(line: str) -> Graph:
    """The graph with bf16 for every f32."""
    return derive(Graph.parse(line), lambda t: replace(t, dtype=BF16) if t.dtype == F32 else t)


LINES = [
    "conv_fprop x=3x64x9x17:bf16{0} w=36x64x1x1:bf16{0}",
    "conv_fprop x=3x37x13x18:bf16{0} w=41x37x3x3:bf16{0} pad=1",
    "conv_fprop x=3x37x13x18:bf16{0} w=41x37x3x3:bf16 pad=1 -> a; bias a b=41:bf16 -> c; relu c -> y",
    "conv_fprop x=2x9x23x19:bf16{0} w=20x9x5x3:bf16 pad=2x1 stride=2x3",
    "conv_fprop x=3x40x9x17:bf16{0} w=36x40x1x1:bf16 stride=2",
    "conv_fprop x=2x33x20x71:bf16{0} w=36x33x3x3:bf16 stride=2 pad=1",
    "conv_fprop x=2x3x12x40:bf16{0} w=6x3x1x2:bf16 stride=2",
    "conv_fprop x=2x7x11x9:bf16{0} w=3x7x5x4:bf16 pad=3 dilation=2x1",
    "conv_fprop x=1x3x5x5:bf16{0} w=4x3x7x7:bf16 pad=3",
    "conv_fprop x=2x600x9x9:bf16{0} w=70x600x1x1:bf16 -> a; bias a b=70:bf16 -> y",
    "conv_dgrad dy=3x37x13x18:bf16{0} w=37x41x3x3:bf16 pad=1 size=13x18",
    "conv_dgrad dy=3x64x13x18:bf16{0} w=64x41x1x1:bf16{0} size=13x18",
    "conv_dgrad dy=2x20x12x6:bf16{0} w=20x9x3x3:bf16 pad=1 stride=2x3 size=23x18",
    "conv_dgrad dy=3x36x5x9:bf16{0} w=36x40x1x1:bf16 stride=2 size=9x17",
    "conv_dgrad dy=2x20x5x4:bf16{0} w=20x9x2x1:bf16 stride=3 size=14x12",
]
PRODUCTS = [
    "matmul a=70x64:bf16 b=64x50:bf16",
    "matmul a=17x35:bf16 b=35x13:bf16 -> c; bias c b:d=13:bf16 axis=1 -> y; relu y -> z",
    "matmul a=17x35:bf16 b=35x13:bf16 -> c; bias c b:d=17:bf16 axis=0 -> y",
    "matmul a=70x600:bf16 b=600x130:bf16",
    "matmul a=33x600:bf16 b=70x600:bf16 transpose_b=1 -> c; bias c b:d=70:bf16 axis=1 -> y",
    "matmul a=300x64:bf16 b=300x33:bf16 transpose_a=1 -> c; bias c b:d=33:bf16 axis=1 -> y",
    "matmul a=300x64:bf16 b=300x33:bf16 transpose_a=1 -> c; bias c b:d=64:bf16 axis=0 -> y",
    "matmul a=30x64:bf16 b=33x30:bf16 transpose_a=1 transpose_b=1",
    "matmul a=3x10x20:bf16 b=3x20x40:bf16",
    "matmul a=2x3x4x9x11:bf16:s3000x900x200x20x1 b=4x11x7:bf16",
    "matmul a=17x35:bf16:s1x19 b=35x13:bf16:s20x1 -> c=17x13:bf16:s1x17",
    "matmul a=1x700:bf16 b=65x700:bf16 transpose_b=1",
    "matmul a=5x0:bf16 b=0x7:bf16",
    "matmul a=0x4:bf16 b=4x7:bf16",
]
ALL = [(CONV, line.format(layout)) for line in LINES for layout in ("", ":nhwc")]
ALL += [(MATMUL, line) for line in PRODUCTS]


@devices
@pytest.mark.parametrize(("engine", "line"), ALL, ids=lambda p: p if isinstance(p, str) else "")
def test_results(engine, line, on):
    for i, fill in enumerate(("exact", "real", "edge")):
        at = ("end", "start")[i % 2]
        assert check(line, engine, fill, (1, 3), device=on, at=at, shift=i) is None


@devices
def test_every_sample(on):
    """The operations' own samples, in bf16."""
    taken = 0
    for op, engine in ((ConvFprop, CONV), (ConvDgrad, CONV), (Matmul, MATMUL)):
        for line in op.samples():
            graph = in_bf16(line)
            taken += check(graph, engine, "exact", (1, 2), device=on) is None
    assert taken > 20


@devices
@pytest.mark.parametrize("line", [LINES[1], LINES[7], LINES[10]])
@pytest.mark.parametrize("layout", ["", ":nhwc"])
def test_every_block_size(line, layout, on):
    graph = Graph.parse(line.format(layout))
    every = {k: v[0] for k, v in CONV.knobs(graph, on).items()}
    for i, (c_block, band, chunk) in enumerate(((32, 1, 32), (32, 4, 64), (64, 40, 32), (640, 3, 96))):
        knobs = every | {"c_block": c_block, "band": band, "k_chunk": chunk, "images": 1 + i % 2,
                         "pixels_first": i // 2}
        settings = EngineConfig(CONV.name, tuple(knobs.items()))
        assert check(graph, CONV, "exact", (1, 3), device=on, settings=settings) is None


@devices
def test_the_sum_of_ones(on):
    """A product of ones counts its terms: nothing is added twice or left out."""
    for n in (2, 31, 33, 70):
        graph = Graph.parse(f"matmul a={n}x{n}:bf16 b={n}x{n}:bf16")
        ones = {t.name: np.ones(t.dim, t.dtype.numpy) for t in graph.inputs}
        got = programs.execute(MATMUL, graph, on, ones, 2)["c"].astype(np.float32)
        assert (got == np.float32(n)).all()
    graph = Graph.parse("conv_fprop x=1x1x3x3:bf16 w=1x1x2x2:bf16")
    ones = {t.name: np.ones(t.dim, t.dtype.numpy) for t in graph.inputs}
    assert (programs.execute(CONV, graph, on, ones)["y"].astype(np.float32) == 4).all()


@devices
def test_one_object_serves_all_sizes(on):
    made = set()
    for n in (5, 9, 40):
        g = Graph.parse(f"conv_fprop x={n}x{n}x{n}x{n}:bf16 w=7x{n}x3x3:bf16 pad=1")
        made.add(CONV.compile(g, CONV.default(g, on), on).address)
    assert len(made) == 1


@pytest.mark.parametrize("isa", ISAS, ids=str)
@pytest.mark.parametrize("rows", [True, False])
def test_kernels_are_emitted_on_any_host(isa, rows):
    constants = {"rows": rows, "flat": False, "direct": False, "x_by": "v", "w_by": "t", "out_step": False,
                 "bias": "o", "relu": True}
    kernel = jit.generate(amx_kernels.pair_product, isa, **constants)
    text = jit.assembly(kernel, isa)
    assert ("tdpbf16ps" in text) == (isa is isas.AMX)
    assert ("vdpbf16ps" in text) == (isa is isas.AVX512_BF16)
    assert text.count("ldtilecfg") == text.count("tilerelease")
    if isa is isas.AVX512_BF16:
        assert len(jit.emit(kernel, isa)) > 1000


def leaves_early(k, code: int = 7):
    """A region that fails with tiles configured."""
    n = k.size("n")
    for begin, _ in k.chunk(n):
        tiles = Tiles(k)
        tiles.zero(0)
        k.error_if(begin >= 0, code)


def tile_state() -> int:
    """Bit 17 or 18 of XINUSE: whether this thread's tiles are configured or hold data."""
    text = """
declare i64 @llvm.x86.xgetbv(i32)
define i64 @in_use() {
  %r = call i64 @llvm.x86.xgetbv(i32 1)
  ret i64 %r
}
"""
    address = jit.compiled_text(text, isas.AVX512, ("in_use",))["in_use"]
    return ctypes.CFUNCTYPE(ctypes.c_int64)(address)() >> 17 & 3


@pytest.mark.isa
@pytest.mark.skipif(not runs("amx"), reason="this machine does not run amx code")
def test_tiles_never_stay_configured():
    lines = ["conv_fprop x=3x37x13x18:bf16 w=41x37x3x3:bf16 pad=1",
             "conv_fprop x=0x4x5x5:bf16 w=3x4x1x1:bf16"]
    for line in lines:
        check(line, CONV, "exact", (1, 3), device=FAKE["amx"])
        assert tile_state() == 0
    program = jit.compiled(leaves_early, isas.AMX)
    with pytest.raises(Exception, match="7"):
        native.call(program, [], {"n": 4})
    assert tile_state() == 0


@pytest.mark.isa
@pytest.mark.skipif(not runs("amx"), reason="this machine does not run amx code")
def test_from_threads_of_python():
    line, wrong = "matmul a=70x64:bf16 b=64x50:bf16", []

    def work():
        try:
            check(line, MATMUL, "exact", 1, device=FAKE["amx"])
            if tile_state():
                wrong.append("tiles stay")
        except Exception as e:
            wrong.append(repr(e))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


_CHILD = """
import os, sys
from vlug.runtime.device import host, FAKE
from vlug.engines.cpu.amx_matmul import PairMatmul
from vlug.testing import check
LINE = "matmul a=70x64:bf16 b=64x50:bf16"
if sys.argv[1] == "stored":
    import builtins
    check(LINE, PairMatmul(), "exact", 2, device=FAKE["amx"])
    assert "llvmlite.binding" not in sys.modules, "LLVM was loaded although the object was stored"
    assert host().products == "amx"
else:
    pid = os.fork()
    if pid == 0:
        check(LINE, PairMatmul(), "exact", 2, device=FAKE["amx"])
        os._exit(0 if host().products == "amx" else 3)
    assert os.waitpid(pid, 0)[1] == 0
    check(LINE, PairMatmul(), "exact", 2, device=FAKE["amx"])
print("fine")
"""


@pytest.mark.isa
@pytest.mark.skipif(not runs("amx"), reason="this machine does not run amx code")
@pytest.mark.parametrize("how", ["forked", "stored"])
def test_a_process_of_its_own(how, tmp_path):
    """Permission is asked for in every process, also before a child is forked, and without LLVM."""
    env = {**os.environ, "VLUG_CACHE_DIR": str(tmp_path)}
    rounds = 2 if how == "stored" else 1
    for i in range(rounds):
        mode = how if how == "forked" or i else "forked"
        out = subprocess.run([sys.executable, "-c", _CHILD, mode], env=env, capture_output=True, text=True,
                             timeout=60)
        assert out.stdout == "fine\n", out.stderr


def test_vlug_isa_caps_products():
    features = frozenset(ISA_NEEDS["amx"])
    assert device.best_products(features) == "amx"
    assert device.best_products(features, "avx512_bf16") == "avx512_bf16"
    assert device.best_products(features, "avx512") == ""
    assert device.best_products(frozenset(ISA_NEEDS["avx512_bf16"])) == "avx512_bf16"
    for cap in ("none", "avx2", "avx512"):
        with config.ISA.using(cap):
            assert device.host().products == ""
    if runs("amx"):
        with config.ISA.using("amx"):
            assert device.host().products == "amx"
        with config.ISA.using("avx512_bf16"):
            assert device.host().products == "avx512_bf16"


def test_without_permission_there_is_no_amx(monkeypatch):
    monkeypatch.setattr(device, "tiles_allowed", lambda: False)
    monkeypatch.setattr(device, "_cpuinfo", lambda: ("CPU", frozenset(ISA_NEEDS["amx"])))
    device._host.cache_clear()
    try:
        assert device.host().products in ("avx512_bf16", "")  # "" where VLUG_ISA caps it
    finally:
        monkeypatch.undo()
        device._host.cache_clear()
    if cpu_features().issuperset(ISA_NEEDS["amx"]):
        monkeypatch.setattr(jit, "tiles_allowed", lambda: False)
        with pytest.raises(NotSupported, match="tiles"):
            jit.compiled(leaves_early, isas.AMX, code=9)


@pytest.mark.parametrize(("line", "words"), [
    ("conv_fprop x=1x2x5x5 w=3x2x3x3", "bf16"),
    ("conv_fprop x=1x4x5x5:bf16 w=4x2x3x3:bf16 groups=2", "groups"),
    ("conv_fprop x=1x2x5x5:bf16 w=3x2x3x3:bf16 -> y=1x3x3x3:bf16:s54x18x6x2", "next to each other"),
])  # fmt: skip
def test_refusals_of_convolution(line, words):
    assert words in CONV.why_not(Graph.parse(line), FAKE["amx"])


def test_refusals():
    assert "f32" in MATMUL.why_not(Graph.parse("matmul a=4x5 b=5x6"), FAKE["amx"])
    far = "matmul a=4x5:bf16 b=5x6:bf16 -> c=4x6:bf16:s30x2"
    assert "next to each other" in MATMUL.why_not(Graph.parse(far), FAKE["amx"])
    for name in ("avx2", "avx512", "neon"):
        assert "products" in MATMUL.why_not(Graph.parse(PRODUCTS[0]), FAKE[name])


def test_tiles_belong_to_a_region():
    with pytest.raises(ValueError, match="no tiles"):
        jit.generate(leaves_early, isas.AVX512)

    def outside(k):
        Tiles(k)

    def twice(k):
        for _ in k.chunk(k.size("n")):
            Tiles(k)
            Tiles(k)

    for build in (outside, twice):
        with pytest.raises(RuntimeError, match="region"):
            jit.generate(build, isas.AMX)
