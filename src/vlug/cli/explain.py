"""vlug explain LINE: the plan of a problem, with what was rejected and why."""

from __future__ import annotations

from collections.abc import Sequence

from vlug import plan as planner
from vlug.cli.common import Parser, applied, emit, graph_of
from vlug.errors import NotSupported
from vlug.heuristics import expect
from vlug.runtime import device
from vlug.store import default_store


def main(argv: Sequence[str]) -> int:
    p = Parser("explain", __doc__.split(": ", 1)[1] if __doc__ else "")
    p.add_argument(
        "line", nargs="+", help="a problem line, such as: conv_fprop x=8x64x56x56 w=64x64x3x3 pad=1"
    )
    p.add_argument("--engine", help="an engine or a configuration (cpu.x/knob=1) that must serve")
    p.add_argument(
        "--no-reference", action="store_true", help="fail where only the slow reference would serve"
    )
    p.add_argument("--device", help="another device: avx2, avx512, amx, neon (default: this machine)")
    p.add_machine()
    args = p.parse_args(argv)
    graph = graph_of(args.line)
    with applied(args):
        where = device.fake(args.device) if args.device else device.host()
        made = planner.plan(
            graph, where, prefer=args.engine, allow_reference=not args.no_reference, store=default_store()
        )
        data = made.explain(as_dict=True)
        text = [made.explain()]
        try:
            e = expect(graph, where, default_store(), args.threads)
            data["against_torch"] = {"ratio": e.ratio, "why": e.why}
            text.append(f"  against stock PyTorch: expected ×{e.ratio:.2f} ({e.why})")
        except NotSupported:
            pass
        emit(args, data, "\n".join(text))
    return 0
