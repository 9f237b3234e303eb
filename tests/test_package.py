"""The package itself: it imports, and says its version."""

import vlug


def test_version() -> None:
    assert vlug.__version__.count(".") == 2
