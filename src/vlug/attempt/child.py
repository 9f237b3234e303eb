"""The process in which `vlug try` runs a script: watches optimiser steps and losses, stops after N steps.

python -m vlug.attempt.child RESULT.json STEPS SCRIPT.py [ARGUMENT …]
"""

from __future__ import annotations

import json
import os
import random
import resource
import runpy
import sys
import time
from pathlib import Path
from typing import Any


class Stop(BaseException):
    """Raised after the last step: not an Exception, so that the script's own handlers let it pass."""


class Watch:
    """Time at the end of each optimiser step, and the loss that led to it."""

    def __init__(self, steps: int, out: Path) -> None:
        self.steps, self.out = steps, out
        self.times: list[float] = []
        self.losses: list[float] = []
        self.loss: Any = None
        self.first: Any = None
        self.stopped = 0

    def install(self) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self.after_step)
        backward = torch.autograd.backward  # Tensor.backward ends here too

        def watched(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            loss = tensors if isinstance(tensors, torch.Tensor) else None
            if loss is None and tensors is not None and len(tensors) == 1:
                loss = tensors[0]
            if loss is not None and loss.numel() == 1:
                self.loss = loss.detach()
            return backward(tensors, *args, **kwargs)

        torch.autograd.backward = watched

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.first is None:
            self.first = optimizer
        if optimizer is not self.first:  # several optimisers (a GAN): the first one's steps count
            return
        now = time.perf_counter()
        if len(self.times) < self.steps:
            self.times.append(now)
            if self.loss is not None:
                self.losses.append(float(self.loss))
        if len(self.times) >= self.steps:
            self.stopped += 1
            if self.stopped > 3:  # the script catches everything and goes on
                self.write("", True)
                os._exit(0)
            raise Stop

    def write(self, error: str, finished: bool) -> None:
        data = {
            "times": self.times,
            "losses": self.losses,
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "stats": _stats(),
            "error": error,
            "finished": finished,
        }
        part = self.out.with_suffix(".part")
        part.write_text(json.dumps(data, default=str))
        part.rename(self.out)


def _stats() -> dict[str, Any] | None:
    if os.environ.get("VLUG_HOOKS") == "off":
        return None
    import vlug

    found: dict[str, Any] = vlug.stats()
    return found


def _seed() -> None:
    """The same numbers in both runs, unless the script seeds by itself."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def main() -> int:
    out, steps, script, *words = sys.argv[1:]
    import torch  # noqa: F401  (finds vlug by its entry point, as in the user's own runs)

    import vlug

    if os.environ.get("VLUG_HOOKS") != "off":
        vlug.enable()
    watch = Watch(int(steps), Path(out))
    watch.install()
    _seed()
    sys.argv = [script, *words]
    sys.path[0] = str(Path(script).resolve().parent)
    error, finished = "", False
    try:
        runpy.run_path(script, run_name="__main__")
    except Stop:
        finished = True
    except SystemExit as e:
        if e.code not in (None, 0):
            error = f"it ended with exit code {e.code}"
    except BaseException as e:
        import traceback

        traceback.print_exc()
        error = f"{type(e).__name__}: {e}"
    watch.write(error, finished)
    return 0


if __name__ == "__main__":
    sys.exit(main())
