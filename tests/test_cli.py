"""The command line: every subcommand's text, JSON and exit code, and its errors in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module

import pytest

from vlug import store as stores
from vlug.__main__ import COMMANDS, main
from vlug.plan import clear_plans
from vlug.store import Timing, default_store


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Timings, kernels and flags of this test alone."""
    monkeypatch.setattr(stores, "_stores", {})
    monkeypatch.setenv("VLUG_CACHE_DIR", str(tmp_path / "cache"))
    clear_plans()


def run(capsys, *words: str) -> tuple[int, str, str]:
    try:
        code = main(words)
    except SystemExit as e:  # of the parser
        code = int(e.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def as_json(capsys, *words: str):
    code, out, err = run(capsys, words[0], "--json", *words[1:])
    assert code == 0, err
    return json.loads(out)


def test_usage_names_every_command(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(f"\n  {name} " in out for name in COMMANDS)
    assert run(capsys)[0] == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(capsys, name):
    with pytest.raises(SystemExit) as e:
        import_module(f"vlug.cli.{COMMANDS[name][0]}").main(["--help"])
    assert e.value.code == 0
    assert f"vlug {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("frobnicate",), 2, "'frobnicate' is not a command"),
        (("run", "relu x=4x8", "--budget", "nan"), 2, "'nan' is not a number of seconds"),
        (("run", "relu x=4x8", "--threads", "99999999"), 2, "99999999 is more than 1024"),
        (("explain", f"conv_fprop x=1x1x4x4 w=1x1x2x2 stride={10**22}"), 2, "must be at most 2147483647"),
        (("explain", f"max_pool x=1x1x4x4 window={2**31}"), 2, "must be at most 2147483647"),
        (("bench", "--json", "/dev/null/x.json"), 2, "/dev/null/x.json cannot be written"),
        (("bench", "--csv", "/dev/null/x.csv"), 2, "/dev/null/x.csv cannot be written"),
        (("demo", "--json", "/dev/null/x.json"), 2, "/dev/null/x.json cannot be written"),
        (("demo", "--out", "/dev/null/x"), 2, "/dev/null/x cannot be made"),
        (("explain", "rlu x=4x8"), 2, "operation: 'rlu' is unknown"),
        (("explain", "relu x=4x8", "--engine", "cpu.nothing"), 2, "'cpu.nothing' is unknown"),
        (("explain", "relu x=4x8", "--engine", "cpu.softmax"), 1, "cpu.softmax does not take"),
        (("explain", "relu x=4x8", "--device", "z80"), 2, "device 'z80'"),
        (("run", " "), 2, "a problem line is wanted"),
        (("cache", "import", "nowhere.json"), 2, "nowhere.json"),
        (("try", "nowhere.py"), 2, "nowhere.py is not a file"),
        (("tune", "nowhere.py"), 2, "nowhere.py is not a file"),
        (("bench", "no_such_set"), 2, "set: 'no_such_set' is unknown"),
    ],
)
def test_errors_are_one_line_and_a_code(capsys, words, code, said):
    got, out, err = run(capsys, *words)
    assert got == code
    assert out == ""
    assert said in err
    assert err.startswith("vlug: error: ")
    assert "Traceback" not in err


def test_wrong_arguments_are_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "vlug", "bench", "--batch", "0"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("vlug: error: argument --batch: '0' is not a number of 1 or more")
    assert done.stderr.count("\n") == 1


def test_an_unexpected_error_is_one_line_and_a_traceback_only_in_debug(capsys, monkeypatch):
    def broken(argv):
        raise RuntimeError("something within")

    monkeypatch.setattr(import_module("vlug.cli.info"), "main", broken)
    monkeypatch.setenv("VLUG_LOG", "warn")
    assert run(capsys, "info") == (1, "", "vlug: error: RuntimeError: something within\n")
    monkeypatch.setenv("VLUG_LOG", "debug")
    assert "Traceback" in run(capsys, "info")[2]


def test_a_closed_pipe_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m vlug list support | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_info(capsys):
    d = as_json(capsys, "info", "--no-frameworks")
    assert d["machine"]["cores"] >= 1
    assert "reference" in d["engines"]
    assert d["store"]["path"].startswith(os.environ["VLUG_CACHE_DIR"])
    text = run(capsys, "info", "--no-frameworks")[1]
    assert d["machine"]["isa"] in text
    assert "ceilings" in text


def test_info_tells_of_a_wrong_setting(capsys, monkeypatch):
    monkeypatch.setenv("VLUG_TUNE", "perhaps")
    assert "VLUG_TUNE=wrong:" in run(capsys, "info", "--no-frameworks")[1]


@pytest.mark.parametrize("what", ["operations", "engines", "support"])
def test_list(capsys, what):
    rows = as_json(capsys, "list", what, "--device", "avx512")
    assert len(rows) > 5
    assert run(capsys, "list", what, "--device", "avx2")[0] == 0
    if what == "support":
        taken = {(r["operation"], r["dtype"], r["layout"]): r["taken by"] for r in rows}
        assert any("cpu.conv_nchw" in e for e in taken["conv_fprop", "f32", "nchw"])
        assert any("cpu.conv_nhwc" in e for e in taken["conv_fprop", "f32", "nhwc"])


def test_explain(capsys):
    d = as_json(capsys, "explain", "relu", "x=8x16x14x14")
    assert d["engine"] == "cpu.pointwise"
    assert {r["engine"] for r in d["rejected"]} >= {"cpu.conv_nchw", "cpu.softmax"}
    assert d["against_torch"]["why"]
    text = run(capsys, "explain", "relu x=8x16x14x14")[1]
    assert "not used:" in text
    assert "against stock PyTorch" in text


@pytest.mark.filterwarnings("default::vlug.errors.VlugWarning")
def test_explain_what_no_fast_engine_takes(capsys):
    line = "conv_fprop x=1x4x3x3x3x3 w=4x4x2x2x2x2"  # four spatial dimensions
    code, _, err = run(capsys, "explain", line, "--no-reference")
    assert code == 1
    assert "cpu.conv_nchw: " in err
    code, out, err = run(capsys, "explain", line)
    assert code == 0
    assert "reference" in out
    assert "slow reference engine" in err


@pytest.mark.parametrize(
    "line",
    [
        "relu x=4x16x9x9",
        "conv_fprop x=2x8x9x9 w=16x8x3x3 pad=1; relu y -> z",
        "conv_wgrad dy=2x8x9x9:f32:nhwc x=2x8x9x9:f32:nhwc size=3 pad=1",
        "batchnorm x=2x8x9x9 scale=8 bias=8 running_mean=8 running_var=8",
        "softmax x=32x100",
    ],
)
def test_run_measures_and_checks(capsys, line):
    d = as_json(capsys, "run", line, "--budget", "0.001", "--threads", "1", "--warm")
    assert d["threads"] == 1
    assert d["seconds"] > 0
    assert all(e["good"] for e in d["errors"].values())
    assert "reference" not in d["engine"]


def test_run_where_elements_of_an_input_share_memory(capsys):
    d = as_json(capsys, "run", "relu x=3x4:f32:s0x1", "--budget", "0.001", "--warm")
    assert d["errors"]["y"]["good"]


def test_run_where_a_result_holds_infinities(capsys):
    """CTC's saved logarithms of what cannot be are -inf: equal to the reference, not wrong."""
    line = "ctc_loss x=9x2x5 target=2x3:i64 input_lengths=2:i64 target_lengths=2:i64"
    d = as_json(capsys, "run", line, "--budget", "0.001", "--warm")
    assert {name: e["good"] for name, e in d["errors"].items()} == {"loss": True, "alpha": True}


@pytest.mark.parametrize("option", ["--seed=3", "--dtype=bf16", "--variant=nhwc", "--at=start"])
def test_run_says_which_options_are_of_strict(capsys, option):
    code, _, err = run(capsys, "run", "relu x=4x8", option)
    assert code == 2
    assert f"argument {option.partition('=')[0]}: only with --strict" in err


def test_run_fails_where_the_result_is_wrong(capsys, monkeypatch):
    module = import_module("vlug.cli.run")
    right = module.evaluate
    monkeypatch.setattr(module, "evaluate", lambda g, a: {n: v + 0.1 for n, v in right(g, a).items()})
    code, out, _ = run(capsys, "run", "relu x=4x8", "--budget", "0.001")
    assert code == 1
    assert "WRONG" in out


def test_run_with_another_isa_and_engine(capsys):
    d = as_json(capsys, "run", "relu x=4x8", "--isa", "none", "--engine", "reference", "--budget", "0.001")
    assert d["engine"] == "reference"
    assert "none" in d["device"]


def test_cache(capsys, tmp_path):
    default_store().record(Timing("relu x=4x8:f32", "d", "cpu.pointwise", "1", "", 2, 1e-3))
    assert as_json(capsys, "cache")["timings"] == 1
    assert run(capsys, "cache", "verify")[:2] == (0, "the store is well\n")
    file = tmp_path / "out.json"
    assert as_json(capsys, "cache", "export", str(file)) == {"timings": 1}
    assert as_json(capsys, "cache", "clear")["timings"] == 1
    assert as_json(capsys, "cache", "import", str(file)) == {"new": 1}
    assert as_json(capsys, "cache", "import", str(file)) == {"new": 0}
    default_store().record(Timing("nonsense x=1", "d", "a", "1", "", 2, 1e-3))
    code, out, _ = run(capsys, "cache", "verify")
    assert code == 1
    assert "'nonsense' is unknown" in out


def test_hooks_switch_outlives_the_process(capsys, monkeypatch):
    monkeypatch.delenv("VLUG_HOOKS", raising=False)
    assert as_json(capsys, "hooks") == {"on": True, "why": None}
    assert as_json(capsys, "hooks", "off")["on"] is False
    assert "vlug hooks off" in as_json(capsys, "hooks", "status")["why"]
    assert as_json(capsys, "hooks", "on")["on"] is True


def test_tune_a_line_remembers_every_configuration(capsys):
    d = as_json(capsys, "tune", "--most", "2", "conv_fprop x=1x8x8x8 w=8x8x3x3 pad=1")
    assert d["best"] in d["seconds"]
    kept = {f"{t.engine}/{t.knobs}" if t.knobs else t.engine for t in default_store().timings()}
    assert kept == set(d["seconds"])
    assert sum(name.startswith("cpu.conv_nchw") for name in kept) <= 2


def test_tune_says_why_nothing_can_be_tuned(capsys):
    code, _, err = run(capsys, "tune", "conv_fprop x=1x4x3x3x3x3 w=4x4x2x2x2x2")
    assert code == 1
    assert "cpu.conv_nchw: " in err
