"""Ask for something that no fast engine takes, and read why: every engine answers with a reason."""

from vlug.errors import NotSupported
from vlug.plan import plan

LINE = "conv_fprop x=1x16x8x28x28 w=32x16x3x3x3 pad=1"  # three spatial dimensions

try:
    plan(LINE, allow_reference=False)
except NotSupported as refusal:
    print(f"{LINE}\nis taken by none of:")
    for engine, why in refusal.reasons:
        print(f"  {engine}: {why}")
else:
    print(plan(LINE).explain())
