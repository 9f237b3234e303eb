"""One of two processes that train together over gloo: DDP and FSDP, off and on (see test_torch_systems).

python distributed_job.py RANK WORLD FILE-FOR-MEETING RESULT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from vlug.frontends import hooks

Step = Callable[[Any], Any]


def net() -> Any:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )  # fmt: skip


def train(wrap: Step, rank: int, optimizer: Any, **options: Any) -> list[float]:
    """Losses of four steps on this process's share of the images, averaged over both."""
    model = wrap(net())
    step = optimizer(model.parameters(), lr=0.02, fused=True, **options)
    g = torch.Generator().manual_seed(7)
    losses = []
    for _ in range(4):
        x, y = torch.randn(8, 3, 16, 16, generator=g), torch.randint(0, 10, (8,), generator=g)
        mine = slice(4 * rank, 4 * rank + 4)
        loss = nn.functional.cross_entropy(model(x[mine]), y[mine])
        step.zero_grad()
        loss.backward()
        step.step()
        shared = loss.detach().clone()
        dist.all_reduce(shared)
        losses.append(shared.item() / 2)
    return losses


def sharded(model: Any) -> Any:
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[4]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main(rank: int, world: int, meeting: str, result: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    hooks.enable(force=True)
    out: dict[str, Any] = {"status": hooks.status()}
    jobs: dict[str, tuple[Step, Any, dict[str, Any]]] = {
        "ddp": (DistributedDataParallel, torch.optim.SGD, {"momentum": 0.9}),
        "ddp buckets as views": (
            lambda m: DistributedDataParallel(m, gradient_as_bucket_view=True, static_graph=True),
            torch.optim.AdamW, {},
        ),
        "fsdp": (sharded, torch.optim.Adam, {}),
    }  # fmt: skip
    for name, (wrap, optimizer, options) in jobs.items():
        hooks.disable()
        off = train(wrap, rank, optimizer, **options)
        hooks.enable(force=True)
        hooks.reset_stats()
        on = train(wrap, rank, optimizer, **options)
        taken = {n: v["taken"] for n, v in hooks.stats().get("torch", {}).items()}
        out[name] = {"off": off, "on": on, "taken": taken}
    dist.destroy_process_group()
    with open(f"{result}.{rank}", "w") as f:
        json.dump(out, f)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
