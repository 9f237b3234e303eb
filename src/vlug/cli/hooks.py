"""vlug hooks: whether frameworks use vlug by themselves, for all later processes of this user."""

from __future__ import annotations

from collections.abc import Sequence

from vlug.cli.common import Parser, emit
from vlug.errors import BadInput
from vlug.frontends import hooks


def main(argv: Sequence[str]) -> int:
    p = Parser(
        "hooks", "Switch the use of vlug by frameworks on or off for later processes, or tell how it is."
    )
    p.add_argument("do", nargs="?", choices=("status", "on", "off"), default="status")
    args = p.parse_args(argv)
    if args.do != "status":
        try:
            hooks.set_persistent(args.do == "on")
        except OSError as e:
            raise BadInput(f"{hooks.flag_file()}: {e.strerror}") from None
    why = hooks.switched_off()
    emit(args, {"on": why is None, "why": why}, "on" if why is None else f"off: {why}")
    return 0
