"""PyTorch's larger machinery with our hooks on: workers, DDP, FSDP, transforms, opcheck, autocast, copies."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torch_support import ROOT, W, X, Y, armed, check, counts, net, same, taken, torch
from vlug.frontends import hooks

pytestmark = pytest.mark.framework
nn: Any = torch.nn
F: Any = torch.nn.functional
HERE = Path(__file__).resolve().parent


def child(*words: str, **env: str) -> subprocess.Popen[str]:
    """A script of the tests in a process of its own."""
    path = os.pathsep.join([str(ROOT / "src"), str(HERE), os.environ.get("PYTHONPATH", "")])
    full = {**os.environ, "PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **env}
    return subprocess.Popen(
        [sys.executable, *words], env=full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(*running: subprocess.Popen[str]) -> list[str]:
    """What they said; all have ended, well."""
    said = []
    try:
        for p in running:
            said.append(p.communicate(timeout=240)[0])
    finally:
        for p in running:
            p.kill()
    assert [p.returncode for p in running] == [0] * len(running), "\n".join(said)
    return said


def test_ddp_and_fsdp_on_two_processes(tmp_path: Path) -> None:
    armed()
    job, meeting, result = str(HERE / "distributed_job.py"), str(tmp_path / "meet"), str(tmp_path / "result")
    finish(*(child(job, str(r), "2", meeting, result, GLOO_SOCKET_IFNAME="lo") for r in range(2)))
    told = [json.loads((tmp_path / f"result.{r}").read_text()) for r in range(2)]
    for name, wanted in (
        ("ddp", ("_convolution", "convolution_backward", "native_batch_norm", "_fused_sgd_")),
        ("ddp buckets as views", ("_convolution", "convolution_backward", "_fused_adamw_")),
        ("fsdp", ("_convolution", "convolution_backward")),
    ):
        for mine in told:
            on, off, taken = (mine[name][k] for k in ("on", "off", "taken"))
            assert on == pytest.approx(off, rel=1e-4), name
            assert all(taken.get(op, 0) for op in wanted), (name, taken)
        assert told[0][name]["on"] == told[1][name]["on"], "both were told the same sums"


SPAWNED = """
import torch
from vlug.frontends import hooks

class Convolved(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        hooks.enable(force=True)
        y = torch.nn.functional.conv2d(torch.ones(1, 1, 6, 7) * i, torch.ones(1, 1, 3, 3))
        return torch.tensor([y.sum().item(), hooks.stats()["torch"]["_convolution"]["taken"] > 0])

if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(
        Convolved(), num_workers=1, batch_size=4, multiprocessing_context="spawn", timeout=100
    )
    rows = torch.cat(list(loader))
    assert rows[:, 0].tolist() == [9.0 * 20 * i for i in range(8)], rows
    assert rows[:, 1].all(), rows
"""


def test_dataloader_workers_that_are_spawned(tmp_path: Path) -> None:
    armed()
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    finish(child(str(script)))


# --- torch.func ---
def flat(model: Any) -> tuple[Any, Any]:
    params = {n: p.detach() for n, p in model.named_parameters()}
    return params, lambda p, x: torch.func.functional_call(model, p, (x,))


def test_functional_call_grad_vmap_per_sample() -> None:
    from torch.func import grad, vmap

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(900, 5))
    params, call = flat(model)

    def loss(p: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(call(p, x[None]), y[None])

    def run() -> Any:
        each = vmap(grad(loss), (None, 0, 0))(params, X, Y % 5)
        return [each[n] for n in sorted(each)]

    check(run)


def test_hessian_jacobians_and_linearize() -> None:
    from torch.func import hessian, jacfwd, jacrev, jvp, linearize, vjp

    x, w = X[:1, :2, :5, :5], W[:2, :2]

    def f(w: Any) -> Any:
        return F.avg_pool2d(F.conv2d(x, w), 2).pow(2).sum()

    check(lambda: hessian(f)(w))
    check(lambda: jacrev(lambda w: F.conv2d(x, w))(w))
    check(lambda: jacfwd(lambda w: F.conv2d(x, w))(w))
    check(lambda: F.softmax(jacfwd(lambda t: F.softmax(t, 0))(x.flatten()), 0))
    check(lambda: list(jvp(lambda w: F.max_pool2d(F.conv2d(x, w), 2), (w,), (w * 2,))))

    def back() -> Any:
        y, pull = vjp(lambda t: F.log_softmax(F.linear(t, w.reshape(2, 18)), 1), X.reshape(-1, 18)[:6])
        return [y, *pull(torch.ones_like(y))]

    check(back)
    check(lambda: linearize(lambda w: F.conv2d(x, w), w)[1](w * 3))


def test_ensembles_by_stacked_parameters() -> None:
    from torch.func import stack_module_state, vmap

    models = [net(seed).eval() for seed in range(3)]
    params, buffers = stack_module_state(models)
    shell = copy.deepcopy(models[0]).to("meta")

    def one(p: Any, b: Any, x: Any) -> Any:
        return torch.func.functional_call(shell, (p, b), (x,))

    check(lambda: vmap(one, (0, 0, None))(params, buffers, X))
    check(lambda: torch.stack([m(X) for m in models]), "_convolution")


# --- what checks operators ---
A: Any = torch.ops.aten
PLAIN: Any = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, True, True)


def optimiser(step: float = 2.0) -> tuple[Any, ...]:
    lists = [[torch.rand(33, generator=torch.Generator().manual_seed(i))] for i in range(4)]
    return (*lists, [], [torch.tensor(step)])


RATES = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": False,
         "maximize": False}  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "arguments", "options"),
    [
        (A._convolution.default, (X, W, None, *PLAIN), {}),
        (A.relu.default, (X,), {}),
        (A.relu_.default, (X.clone(),), {}),
        (A.max_pool2d_with_indices.default, (X, [2, 2]), {}),
        (A.avg_pool2d.default, (X, [2, 2]), {}),
        (A._softmax.default, (X, 1, False), {}),
        (A.addmm.default, (torch.ones(5), torch.ones(3, 4), torch.ones(4, 5)), {}),
        (A.native_batch_norm.default, (X, None, None, torch.zeros(3), torch.ones(3), True, 0.1, 1e-5), {}),
        (A._fused_adam_.default, optimiser(), RATES),
    ],
    ids=lambda p: str(p) if "aten" in str(p) else "",
)
def test_opcheck(operator: Any, arguments: Any, options: Any) -> None:
    """Schema (what is written, what aliases) and fake tensors agree with what runs."""
    armed()
    name = operator.name().removeprefix("aten::").removesuffix(".default")
    before = counts(name)
    if name == "_fused_adam_":  # fake tensors do not go through lists that are written
        torch.library.opcheck(operator, arguments, options, test_utils="test_schema")
    else:
        torch.library.opcheck(operator, arguments, options, test_utils=("test_schema", "test_faketensor"))
    assert counts(name)[0] > before[0]


# --- autocast ---
CAST = {
    "conv2d": lambda: F.conv2d(X, W),
    "linear": lambda: F.linear(X, torch.ones(5, 32)),
    "mm": lambda: X[0, 0] @ X[1, 0],
    "relu": lambda: F.relu(X),
    "softmax": lambda: F.softmax(X.bfloat16(), 1),
    "log_softmax": lambda: F.log_softmax(X.bfloat16(), 1),
    "batch_norm": lambda: F.batch_norm(X.bfloat16(), None, None, training=True),
    "max_pool2d": lambda: F.max_pool2d(X.bfloat16(), 2),
    "avg_pool2d": lambda: F.avg_pool2d(X.bfloat16(), 2),
    "mean": lambda: X.bfloat16().mean((2, 3)),
    "cross_entropy": lambda: F.cross_entropy(X[:, :, 0, 0].bfloat16(), Y % 3),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_stock(dtype: Any) -> None:
    armed()

    def kinds() -> dict[str, Any]:
        with torch.autocast("cpu", dtype):
            return {n: call().dtype for n, call in CAST.items()}

    with hooks.using(False):
        want = kinds()
    assert kinds() == want


# --- copies ---
def test_copies_of_a_trained_model_and_its_optimiser() -> None:
    armed()

    def run() -> list[Any]:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)

        def step(model: Any, optimizer: Any) -> float:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            optimizer.step()
            return float(loss.item())

        losses = [step(model, optimizer)]
        held = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, held)
        pair = copy.deepcopy((model, optimizer))
        again = pickle.loads(pickle.dumps(model))
        for way in range(2):
            other, its = (net(9), None) if way else (again, None)
            its = torch.optim.AdamW(other.parameters(), lr=0.01, fused=True)
            held.seek(0)
            saved = torch.load(held)
            other.load_state_dict(saved["model"])
            its.load_state_dict(saved["optimizer"])
            losses += [step(other, its), step(other, its)]
        losses += [step(model, optimizer), step(model, optimizer), step(*pair)]
        assert losses[1:3] == losses[3:5] == losses[5:7]
        return losses

    with hooks.using(False):
        want = run()
    before = counts("_fused_adamw_")
    same(want, run(), rtol=1e-4, atol=1e-4)
    assert counts("_fused_adamw_")[0] > before[0]


def test_a_compiled_step_of_an_optimiser() -> None:
    """torch.compile keeps the fused step as a call, whose kernel is ours."""
    armed()

    def run() -> Any:
        torch._dynamo.reset()
        g = torch.Generator().manual_seed(3)
        p = [torch.randn(40, generator=g).requires_grad_() for _ in range(2)]
        optimizer = torch.optim.Adam(p, lr=0.01, fused=True)
        step = torch.compile(optimizer.step, backend="aot_eager")
        for x in p:
            x.grad = torch.ones(40)
        for _ in range(3):
            step()
        return p

    with hooks.using(False):
        want = run()
    same(want, run(), rtol=1e-5, atol=1e-5)


def test_the_generator_of_dropout_stays_torchs() -> None:
    """A mask must come from PyTorch's own generator to be reproducible there: dropout is not taken."""
    armed()

    def run() -> Any:
        torch.manual_seed(5)
        x = torch.ones(1000, requires_grad=True)
        y = F.dropout(x, 0.3)
        y.sum().backward()
        return [y, x.grad, torch.rand(3)]

    with hooks.using(False):
        want = run()
    same(want, run(), rtol=0, atol=0)
    assert "native_dropout" not in taken()
