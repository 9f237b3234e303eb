"""PyTorch's fused optimisers on against off: parameters, state, changing rates, what goes to stock."""

from __future__ import annotations

from typing import Any

import pytest

from torch_support import armed, counts, same, torch
from vlug.frontends import hooks

pytestmark = pytest.mark.framework
SHAPES = ((16, 3, 5, 5), (64,), (100, 51), (1,), (0, 3), (5, 7))


def steps(cls: Any, dtype: Any, layout: Any = None, groups: bool = False, **options: Any) -> list[Any]:
    """Parameters and state after four steps with a rate, betas and momentum that change."""
    g = torch.Generator().manual_seed(0)

    def made(shape: Any) -> Any:
        t = torch.randn(shape, generator=g).to(dtype)
        return t.contiguous(memory_format=layout) if layout is not None and t.dim() == 4 else t

    p = [made(s).requires_grad_() for s in SHAPES]
    given = [{"params": p[:3]}, {"params": p[3:], "weight_decay": 0.3}] if groups else p
    optimizer = cls(given, fused=True, **options)
    for step in range(4):
        for x in p:
            x.grad = made(x.shape)
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * 0.5
            if "betas" in group:
                group["betas"] = (group["betas"][0] - 0.1, 0.99)
            elif group["momentum"]:
                group["momentum"] -= 0.1 * (step + 1) / 4
    state = optimizer.state_dict()["state"]
    return [*p, *(state[i][n] for i in sorted(state) for n in sorted(state[i]))]


OPTIM = torch.optim
CASES = [
    (OPTIM.Adam, {"lr": 0.01}, "_fused_adam_"),
    (OPTIM.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}, "_fused_adam_"),
    (OPTIM.Adam, {"lr": 0.01, "maximize": True, "groups": True}, "_fused_adam_"),
    (OPTIM.AdamW, {"lr": 0.01, "weight_decay": 0.1}, "_fused_adamw_"),
    (OPTIM.AdamW, {"lr": 0.01, "amsgrad": True, "layout": torch.channels_last}, "_fused_adamw_"),
    (OPTIM.SGD, {"lr": 0.1}, "_fused_sgd_"),
    (OPTIM.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}, "_fused_sgd_"),
    (OPTIM.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "groups": True}, "_fused_sgd_"),
    (OPTIM.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "maximize": True}, "_fused_sgd_"),
]


@pytest.mark.parametrize(("cls", "options", "operator"), CASES)
def test_on_is_as_off(cls: Any, options: dict[str, Any], operator: str) -> None:
    armed()
    with hooks.using(False):
        want = steps(cls, torch.float32, **options)
    before = counts(operator)
    got = steps(cls, torch.float32, **options)
    same(want, got, rtol=2e-6, atol=2e-6)
    after = counts(operator)
    assert after[0] - before[0] == (8 if options.get("groups") else 4), after
    assert after[1] == before[1]


def test_bfloat16_adam_is_as_near_to_the_truth_as_stock() -> None:
    armed()
    with hooks.using(False):
        want = steps(OPTIM.AdamW, torch.bfloat16, lr=0.01)
        truth = steps(OPTIM.AdamW, torch.float64, lr=0.01)
    before = counts("_fused_adamw_")
    got = steps(OPTIM.AdamW, torch.bfloat16, lr=0.01)
    assert counts("_fused_adamw_")[0] == before[0] + 4
    assert [t.dtype for t in want] == [t.dtype for t in got]
    for exact, stock, ours in zip(truth, want, got):
        if exact.numel():
            error = (ours.double() - exact).abs().max()
            assert error <= 1.5 * (stock.double() - exact).abs().max() + 2**-8 * exact.abs().max()


def test_a_rate_in_a_tensor() -> None:
    armed()
    three = ((OPTIM.Adam, "_fused_adam_"), (OPTIM.AdamW, "_fused_adamw_"), (OPTIM.SGD, "_fused_sgd_"))
    for cls, operator in three:
        with hooks.using(False):
            want = steps(cls, torch.float32, lr=torch.tensor(0.05))
        before = counts(f"{operator}.tensor_lr")
        got = steps(cls, torch.float32, lr=torch.tensor(0.05))
        assert counts(f"{operator}.tensor_lr")[0] == before[0] + 4
        same(want, got, rtol=2e-6, atol=2e-6)


def adam(call: Any, n: int = 40, step: float = 3.0, dtype: Any = None, **given: Any) -> list[Any]:
    g = torch.Generator().manual_seed(2)
    lists = [[torch.randn(s, generator=g).to(dtype) for s in ((n,), (3, 5))] for _ in range(4)]
    lists[3] = [t.abs() for t in lists[3]]
    strided = given.pop("strided", False)
    if strided:
        lists[1][1] = lists[1][1].t().contiguous().t()
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False,
               "maximize": False, **given}  # fmt: skip
    result = call(*lists, [], [torch.tensor(step)] * 2, **options)
    return [result, *lists[0], *lists[2], *lists[3]]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"dtype": torch.float64}, "dtype"),
        ({"grad_scale": torch.tensor(2.0), "found_inf": torch.tensor(0.0)}, "scaler"),
        ({"found_inf": torch.tensor(1.0)}, "scaler"),
        ({"strided": True}, "strides"),
    ],
)
def test_what_is_odd_goes_to_stock(given: dict[str, Any], reason: str) -> None:
    armed()
    call = torch.ops.aten._fused_adam_
    with hooks.using(False):
        want = adam(call, **given)
    before = counts("_fused_adam_")
    got = adam(call, **given)
    same(want, got, rtol=0, atol=0)
    taken, _, reasons = counts("_fused_adam_")
    assert taken == before[0]
    assert any(reason in r for r in reasons), reasons


def test_steps_that_make_no_sense_give_what_stock_gives() -> None:
    armed()
    call = torch.ops.aten._fused_adam_
    for step in (0.0, 1.5, -2.0, float("nan")):
        with hooks.using(False):
            want = adam(call, step=step)
        same(want, adam(call, step=step), rtol=2e-6, atol=2e-6)


def test_versions_are_stocks_and_gradients_left_alone() -> None:
    armed()

    def version() -> int:
        p = torch.ones(50, requires_grad=True)
        p.grad = torch.full((50,), 2.0)
        torch.optim.Adam([p], fused=True).step()
        assert (p.grad == 2).all()
        return int(p._version)

    with hooks.using(False):
        want = version()
    assert version() == want


def test_a_mixture_with_a_gradient_scaler_trains_as_stock() -> None:
    armed()

    def train() -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(20, 10)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        scaler = torch.amp.GradScaler("cpu")
        for i in range(4):
            optimizer.zero_grad()
            loss = model(torch.full((4, 20), 1.0 + i)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return list(model.parameters())

    with hooks.using(False):
        want = train()
    same(want, train(), rtol=2e-5, atol=2e-5)
