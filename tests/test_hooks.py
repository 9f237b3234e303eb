"""Switches of the hooks: enable, disable, using, deny lists, the persistent flag; on a made-up frontend."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from vlug import config
from vlug.errors import BadInput, ConfigError
from vlug.frontends import hooks


class Fake:
    """A frontend that remembers what it was told."""

    name = "fake"

    def __init__(self) -> None:
        self.told: list[hooks.Switches] = []
        self.wishes: list[tuple[int, bool | None]] = []
        self.count = 3

    def apply(self, switches: hooks.Switches) -> None:
        self.told.append(switches)

    def wish(self, on: bool | None) -> None:
        self.wishes.append((threading.get_ident(), on))

    def known(self) -> frozenset[str]:
        return frozenset({"conv2d", "relu"})

    def stats(self) -> dict[str, Any]:
        return {"conv2d": {"taken": self.count, "passed": 0, "reasons": {}}}

    def reset_stats(self) -> None:
        self.count = 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fake:
    monkeypatch.setenv("VLUG_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("VLUG_HOOKS", raising=False)
    monkeypatch.setattr(hooks, "_frontends", {})
    monkeypatch.setattr(hooks, "_refusals", {})
    monkeypatch.setattr(hooks, "_switches", None)
    monkeypatch.setattr(hooks, "_arm_loaded", lambda: None)
    return Fake()


def test_a_new_frontend_is_told_the_switches(fake: Fake) -> None:
    hooks.register(fake)
    assert fake.told == [hooks.Switches(True, False, frozenset())]
    assert hooks.status() == {"fake": "on"}


def test_enable_and_disable(fake: Fake) -> None:
    hooks.register(fake)
    hooks.disable()
    assert not fake.told[-1].on
    assert hooks.status()["fake"].startswith("off")
    hooks.enable(force=True)
    assert fake.told[-1] == hooks.Switches(True, True)
    hooks.disable()
    hooks.enable()
    assert fake.told[-1].force, "force stays until it is changed"
    hooks.enable(force=False)
    assert not fake.told[-1].force


def test_deny(fake: Fake) -> None:
    hooks.register(fake)
    hooks.enable(deny=["conv2d"])
    assert fake.told[-1].deny == {"conv2d"}
    hooks.enable()
    assert fake.told[-1].deny == {"conv2d"}, "the list is kept"
    hooks.enable(deny="relu, conv2d")
    assert fake.told[-1].deny == {"conv2d", "relu"}
    with pytest.raises(BadInput, match=r"deny: 'conv9d'.*there are conv2d, relu"):
        hooks.enable(deny=["conv9d"])
    assert fake.told[-1].deny == {"conv2d", "relu"}
    hooks.enable(deny=[])
    assert not fake.told[-1].deny


def test_using_is_of_a_thread_and_nests(fake: Fake) -> None:
    hooks.register(fake)
    with hooks.using(False):
        with hooks.using(True):
            pass
    assert [w for _, w in fake.wishes] == [None, False, True, False, None]
    seen: list[Any] = []
    with hooks.using(False):
        t = threading.Thread(target=lambda: (hooks.register(fake), seen.append(fake.wishes[-1])))
        t.start()
        t.join()
    assert seen[0][1] is None, "another thread has no wish of its own"
    with pytest.raises(ZeroDivisionError), hooks.using(False):
        1 / 0  # noqa: B018
    assert fake.wishes[-1][1] is None


def test_stats_and_reset(fake: Fake) -> None:
    hooks.register(fake)
    assert hooks.stats() == {"fake": {"conv2d": {"taken": 3, "passed": 0, "reasons": {}}}}
    hooks.reset_stats()
    assert hooks.stats()["fake"]["conv2d"]["taken"] == 0


def test_environment(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLUG_HOOKS", "off")
    monkeypatch.setenv("VLUG_DENY", "relu,conv2d")
    monkeypatch.setenv("VLUG_FORCE", "1")
    hooks.register(fake)
    assert fake.told == [hooks.Switches(False, True, frozenset({"relu", "conv2d"}))]
    assert hooks.switched_off() == "VLUG_HOOKS is off"
    monkeypatch.setenv("VLUG_HOOKS", "perhaps")
    with pytest.raises(ConfigError, match="VLUG_HOOKS='perhaps'"):
        hooks.switched_off()


def test_persistent(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hooks.switched_off() is None
    hooks.set_persistent(False)
    assert "vlug hooks off" in str(hooks.switched_off())
    monkeypatch.setenv("VLUG_HOOKS", "on")
    assert hooks.switched_off() is None, "the environment comes first"
    monkeypatch.delenv("VLUG_HOOKS")
    hooks.register(fake)
    assert not fake.told[-1].on
    hooks.set_persistent(True)
    hooks.set_persistent(True)
    assert hooks.switched_off() is None
    assert not hooks.flag_file().exists()
    assert config.cache_dir().exists()


def test_a_cache_that_cannot_be_written(fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VLUG_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert hooks.switched_off() is None
    with pytest.raises(OSError):
        hooks.set_persistent(False)
