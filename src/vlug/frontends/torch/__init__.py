"""PyTorch: native adapters in its dispatcher, armed when torch is imported (entry point `torch.backends`)."""

from __future__ import annotations

__all__ = ["arm_or_say_why", "autoload"]


def autoload() -> None:
    """Called by `import torch`. Whatever goes wrong here, PyTorch goes on as if vlug were not installed."""
    try:
        from vlug.frontends import hooks

        why = hooks.switched_off()
        if why is not None:
            hooks.refuse("torch", why)
            return
        arm_or_say_why()
    except Exception as e:
        _tell(e)


def arm_or_say_why() -> bool:
    """Arm the adapters; False, and one line that says why, where that cannot be done."""
    try:
        from vlug import log
        from vlug.frontends import hooks
        from vlug.frontends.torch import arm
        from vlug.frontends.torch.dispatcher import Unfit

        try:
            hooks.register(arm.armed())
            return True
        except Unfit as e:
            hooks.refuse("torch", str(e))
            log.once("notice", f"PyTorch runs without vlug: {e}")
    except Exception as e:
        _tell(e)
    return False


def _tell(e: Exception) -> None:
    try:
        from vlug import log
        from vlug.frontends import hooks

        hooks.refuse("torch", f"an error of ours: {type(e).__name__}: {e}")
        log.warn(f"PyTorch runs without vlug after an error of ours: {type(e).__name__}: {e}")
    except Exception:
        pass  # not even a line can be said; PyTorch runs
