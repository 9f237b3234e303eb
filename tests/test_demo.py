"""The demo: its figures, what must hold, and a short run of the real thing."""

from __future__ import annotations

import json

import pytest

from vlug.cli import demo as command
from vlug.demo import report


def digits(losses=(2.0, 1.0), accuracy=98.0, epochs=(9.0, 2.0, 2.0)):
    return {"losses": list(losses), "epoch_seconds": list(epochs), "accuracy": accuracy, "memory": 1 << 28,
            "stats": None, "threads": 2, "torch": "2.13", "said": []}  # fmt: skip


def resnet(losses=(7.0,), seconds=(5.0, 2.0)):
    return {"losses": list(losses), "step_seconds": list(seconds), "memory": 1 << 30, "stats": None}


def test_figures_leave_out_the_first_epoch_and_step():
    d = report.digits_figures(digits(), digits(epochs=(20.0, 1.0, 1.0)))
    assert d["epoch_seconds"] == {"stock": 2.0, "vlug": 1.0}
    assert d["speed_up"] == 2.0
    r = report.resnet_figures(resnet(), resnet(seconds=(6.0, 1.0)))
    assert r["speed_up"] == 2.0
    assert r["first_step_extra"] == 1.0


@pytest.mark.parametrize(
    ("ours", "net", "failing"),
    [
        (digits(), resnet(), []),
        (digits(losses=(2.0, 1.0002)), resnet(), ["first 20 losses apart"]),
        (digits(accuracy=97.4), resnet(), ["accuracies apart, points"]),
        (digits(accuracy=96.9), resnet(), ["accuracies apart, points", "least accuracy, %"]),
        (digits(), resnet(losses=(7.1,)), ["ResNet-50 loss apart"]),
    ],
)
def test_what_must_hold(ours, net, failing):
    held = report.agreements(report.digits_figures(digits(), ours), report.resnet_figures(resnet(), net))
    assert [h.what for h in held if not h.holds] == failing


def test_only_the_first_losses_must_agree():
    late = [1.0] * report.FIRST + [2.0]
    d = report.digits_figures(digits(losses=late), digits(losses=[1.0] * 21))
    assert all(h.holds for h in report.agreements(d, None))


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "deep" / "losses.png"
    assert report.plot(path, report.digits_figures(digits(), digits()))
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def children(monkeypatch, tmp_path):
    """Runs of the demo that take no time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "find_spec", lambda name: True)
    results = {"digits": [digits(), digits()], "resnet50": [resnet(), resnet()]}

    def run(task, options, *, vlug, progress):
        progress(1, 2)
        return results[task][vlug]

    monkeypatch.setattr(report, "run_child", run)
    return results


def test_json_file_holds_all_figures(children, tmp_path, capsys):
    assert command.main(["--json", str(tmp_path / "out.json")]) == 0
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["agree"]
    assert data["digits"]["stock"]["losses"] == [2.0, 1.0]
    assert data["resnet50"]["speed_up"] == 1.0
    out = capsys.readouterr().out
    assert "digits: accuracy" in out
    assert "ResNet-50: training step" in out


def test_exit_code_tells_of_disagreement(children, capsys):
    children["digits"][True] = digits(losses=(2.0, 1.5))
    assert command.main([]) == 1
    assert "FAILED first 20 losses apart" in capsys.readouterr().out


def test_json_alone_prints(children, capsys):
    assert command.main(["--json", "--quick"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["resnet50"] is None
    assert len(data["agreements"]) == 1


@pytest.mark.framework
def test_both_sides_train_and_agree():
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    steps: list[tuple[int, int]] = []
    options = {"epochs": 1, "batch": 128}
    stock = report.run_child("digits", options, vlug=False, progress=lambda at, of: steps.append((at, of)))
    ours = report.run_child("digits", options, vlug=True, progress=lambda at, of: None)
    assert steps[-1] == (4, 7)
    assert stock["stats"] is None
    assert ours["stats"] is not None
    d = report.digits_figures(stock, ours)
    assert d["first_losses_apart"] < report.LOSS_APART
    assert stock["images"] == [898, 899]


@pytest.mark.framework
def test_resnet_50_has_the_published_size():
    pytest.importorskip("torch")
    from vlug.demo.model import ResNet50

    assert sum(p.numel() for p in ResNet50().parameters()) == 25_557_032
