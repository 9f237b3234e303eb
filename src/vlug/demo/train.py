"""The demo's training, in a process of its own: plain PyTorch, whether vlug serves it or not.

    python -m vlug.demo.train digits|resnet50 JSON-OPTIONS

Prints one JSON object a line: {"at": step, "of": steps} as it goes, at last {"result": …}.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F

from vlug.demo.model import ResNet50, SmallResNet


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def digits(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """scikit-learn's handwritten digits (1797 scans of 8×8), scaled to 32×32: train x, y, test x, y."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    images = torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    images = F.interpolate(images, size=(32, 32), mode="bilinear", align_corners=False)
    images = (images - images.mean()) / images.std()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    images, labels = images[order], torch.tensor(y, dtype=torch.int64)[order]
    n = len(images) // 2
    return images[:n], labels[:n], images[n:], labels[n:]


def train_digits(epochs: int = 10, batch: int = 64, lr: float = 0.05, seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    x, y, test_x, test_y = digits(seed)
    model = SmallResNet()
    steps = epochs * (len(x) // batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-3, nesterov=True)
    rise = 42  # a run of fewer steps ends while the rate still rises

    def share(step: int) -> float:
        """Exponential rise over a factor of 10000, then a cosine to 0. While the rate is low, two runs that
        differ in rounding only stay together, so that their losses can be compared."""
        if step < rise:
            return float(10 ** (4 * (step / rise - 1)))
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    losses, epoch_seconds = [], []
    for _ in range(epochs):
        start = time.perf_counter()
        order = torch.randperm(len(x))
        for i in range(len(x) // batch):
            rows = order[i * batch : (i + 1) * batch]
            loss = F.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if len(losses) % 4 == 0:
                tell(at=len(losses), of=steps)
        epoch_seconds.append(time.perf_counter() - start)
    model.eval()
    with torch.inference_mode():
        right = sum(
            int((model(a).argmax(1) == b).sum()) for a, b in zip(test_x.split(128), test_y.split(128))
        )
    return {
        "losses": losses,
        "epoch_seconds": epoch_seconds,
        "accuracy": 100 * right / len(test_x),
        "images": [len(x), len(test_x)],
    }


def train_resnet50(steps: int = 3, batch: int = 8, size: int = 224, seed: int = 0) -> dict[str, Any]:
    """Training steps on random images; the first one pays for everything that is done once."""
    torch.manual_seed(seed)
    model = ResNet50()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(batch, 3, size, size), torch.randint(1000, (batch,))
    losses, seconds = [], []
    for i in range(steps):
        start = time.perf_counter()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        tell(at=i + 1, of=steps)
    return {"losses": losses, "step_seconds": seconds, "batch": batch, "size": size}


def served() -> dict[str, Any] | None:
    """vlug's counts, if it was active in this process."""
    if "vlug.frontends.torch" not in sys.modules:
        return None
    import vlug

    found: dict[str, Any] = vlug.stats()
    return found if "torch" in found else None  # the entry point was called and found it switched off


def main() -> int:
    task, options = sys.argv[1], json.loads(sys.argv[2])
    result = {"digits": train_digits, "resnet50": train_resnet50}[task](**options)
    result["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result["threads"] = torch.get_num_threads()
    result["torch"] = torch.__version__
    result["stats"] = served()
    tell(result=result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
