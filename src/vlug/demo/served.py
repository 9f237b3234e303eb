"""The demo's training with vlug switched on by hand, should `import torch` not have found it by itself.

Where vlug is installed its entry point does so; run from a source tree it has none.
"""

from __future__ import annotations

import sys

import torch  # noqa: F401

import vlug
from vlug.demo import train

if __name__ == "__main__":
    vlug.enable()
    sys.exit(train.main())
