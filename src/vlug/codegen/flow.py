"""Flow: loops, tails and branches; the variables that are alive are carried by them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vlug.codegen.builder import Builder
from vlug.codegen.types import I64
from vlug.codegen.values import Idx, Int, Lanes, Val, Var


class Flow(Builder):
    """Control flow as Python generators and context managers."""

    def _vars(self) -> list[Var]:
        live = [v for r in self._live if (v := r()) is not None]
        self._live = [weakref.ref(v) for v in live]
        return live

    def _end(self, live: list[Var]) -> None:
        """A loop or branch is over: variables made inside are no longer carried."""
        outer = {id(v) for v in live}
        for r in self._live:
            v = r()
            if v is not None and id(v) not in outer:
                v.scope = None
        self._live = [weakref.ref(v) for v in live]

    def _phis(self, vs: list[Any], block: Any) -> list[Any]:
        out = [self.b.phi(v.type) for v in vs]
        for phi, v in zip(out, vs):
            phi.add_incoming(self.use(v), block)
        return out

    def _merge(self, live: list[Var], before: list[list[Any]], pre: Any, cur: Any) -> None:
        for x, old in zip(live, before):
            new = x.v
            if new is not old:
                x.v = self._phis(old, pre)
                for phi, v in zip(x.v, new):
                    phi.add_incoming(self.use(v), cur)

    def loop(self, lo: Int, hi: Int, step: Int = 1) -> Iterator[Int]:
        """A loop, tested at its end (and before, where it may be empty)."""
        known = isinstance(lo, int) and isinstance(hi, int)
        if known and isinstance(step, int) and lo + step >= hi:
            if lo < hi:
                yield lo
            return
        b, live = self.b, self._vars()
        lo_v, hi_v = self.raw(lo), self.raw(hi)
        lo_v, hi_v, pre, before = self.use(lo_v), self.use(hi_v), b.block, [x.v for x in live]
        body, end = self.fn.append_basic_block("loop"), self.fn.append_basic_block("end")
        if known:
            b.branch(body)
        else:
            b.cbranch(b.icmp_signed("<", lo_v, hi_v), body, end)
        b.position_at_end(body)
        i = b.phi(I64)
        i.add_incoming(lo_v, pre)
        for x in live:
            x.v = self._phis(x.v, pre)
        carried = [x.v for x in live]
        multiple = step if isinstance(step, int) and self.is_multiple(lo, step) else 1
        done = False
        try:
            yield Idx(self, i, 0, multiple)
            done = True
        finally:
            if not done:
                self._broken = "a loop of the kernel was left by break, return or an exception"
        n, cur = b.add(i, self.use(self.raw(step)), flags=("nsw",)), b.block
        i.add_incoming(n, cur)
        for x, phis in zip(live, carried):
            for phi, v in zip(phis, x.v):
                phi.add_incoming(self.use(v), cur)
        b.cbranch(b.icmp_signed("<", n, hi_v), body, end)
        b.position_at_end(end)
        if not known:
            self._merge(live, before, pre, cur)
        self._end(live)

    def range(self, lo: Int, hi: Int | None = None, step: Int = 1, unroll: int = 1) -> Iterator[Int]:
        """A loop; with unroll the body is emitted that often, and the rest follows one at a time."""
        lo, hi = (0, lo) if hi is None else (lo, hi)
        if unroll == 1:
            yield from self.loop(lo, hi, step)
            return
        mid = lo + (hi - lo) // (step * unroll) * (step * unroll)
        for i in self.loop(lo, mid, step * unroll):
            for u in range(unroll):
                yield i + step * u
        if not self.is_multiple(hi - lo, step * unroll):
            yield from self.loop(mid, hi, step)

    def vectors(self, lo: Int, hi: Int | None = None, *, by: int = 1, tail: str = "loop") -> Iterator[Lanes]:
        """Vector positions over [lo, hi), `by` vectors at a time. The rest comes masked:
        tail="loop" one vector at a time, "switch" one body for each number of vectors left."""
        if tail not in ("loop", "switch"):
            raise ValueError(f'tail={tail!r}: "loop" or "switch"')
        lo, hi = (0, lo) if hi is None else (lo, hi)
        V, group = self.V, self.V * by
        n = hi - lo
        mid = lo + n // group * group
        for i in self.loop(lo, mid, group):
            yield Lanes(self, i, [None] * by)
        if isinstance(n, int):
            whole, rem = n % group // V, n % V
            if whole or rem:
                yield Lanes(self, mid, [None] * whole + ([self.mask(rem)] if rem else []))
        elif self.is_multiple(n, group):
            return
        elif tail == "loop":
            for i in self.loop(mid, hi, V):
                yield Lanes(self, i, [None if self.is_multiple(n, V) else self.mask(hi - i)])
        else:
            left, exact = hi - mid, self.is_multiple(n, V)
            count = (left + (V - 1)) // V
            for u in range(1, by + (not exact)):
                with self.when(self.compare("==", count, u)):
                    yield Lanes(
                        self, mid, [None] * (u - 1) + [None if exact else self.mask(left - (u - 1) * V)]
                    )

    @contextmanager
    def when(self, cond: Val | bool, sense: bool = True) -> Iterator[None]:
        """What stands inside runs where the condition holds. A known False emits nothing that runs."""
        b, live = self.b, self._vars()
        before, pre = [x.v for x in live], b.block
        if isinstance(cond, bool):
            if cond is sense:
                yield
                return
            b.position_at_end(self.fn.append_basic_block("never"))
            yield
            b.unreachable()
            b.position_at_end(pre)
            for x, v in zip(live, before):
                x.v = v
            self._end(live)
            return
        then, end = self.fn.append_basic_block("then"), self.fn.append_basic_block("end")
        b.cbranch(self.use(cond.v[0]), *((then, end) if sense else (end, then)))
        b.position_at_end(then)
        yield
        cur = b.block
        b.branch(end)
        b.position_at_end(end)
        self._merge(live, before, pre, cur)
        self._end(live)

    def unless(self, cond: Val | bool) -> Any:
        """What stands inside runs where the condition does not hold."""
        return self.when(cond, sense=False)

    def either(self, cond: Val | bool) -> Iterator[bool]:
        """Both branches: yields True, then False; `for yes in k.either(c): if yes: … else: …`."""
        with self.when(cond):
            yield True
        with self.unless(cond):
            yield False

    def blocks(self, n: Int, size: Int, lo: Int = 0) -> Iterator[tuple[Int, Int]]:
        """[begin, end) pieces of [lo, n)."""
        for i in self.loop(lo, n, size):
            yield i, i + size if self.is_multiple(n - lo, size) else self.min(i + size, n)
