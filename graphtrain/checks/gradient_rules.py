"""The states of gradients and what each effect does to them: for one process, for several ranks, and for divisors."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from graphtrain.graph.elements import Severity

# "clean": there are none. "raw": the sum of backward passes. "exchanged": summed over ranks. "scaled": divided by the
# scale of the loss. "final": clipped or changed, so that none may be added. "used": by a step. With several ranks also
# "scaled apart" and "final apart": each rank has done so with its own part.
State = str
# Gradients that exist, and that no step has used.
UNUSED: tuple[State, ...] = ("raw", "exchanged", "scaled", "final", "scaled apart", "final apart")


@dataclass(frozen=True)
class Fault:
    """The problem of an effect in a state. Its texts have placeholders, such as `{node}` and `{optimizer}`."""

    code: str
    message: str
    hint: str
    severity: Severity = "error"


# The state after an effect, for each state before it; with the code of the problem, if there is one.
_TABLE = """
           clean       raw        exchanged       scaled       final         used
backward   raw         raw        raw G413        raw G413     raw G402      raw G405
exchange   clean G411  exchanged  exchanged G412  scaled G412  final G412    used G406
scale      clean G411  scaled     scaled          scaled G412  final G412    used G406
clip       clean G411  final      final           final        final         used G406
read       clean G411  raw        exchanged       scaled       final         used
divide     clean G411  raw        exchanged       scaled       final G412    used G406
use        clean G411  used       used            used         used          used
step       clean G401  used       used            used         used          used G403
zero_grad  clean       clean G404 clean G404      clean G404   clean G404    clean
"""
# The differences for several ranks: gradients that were not exchanged are unscaled and clipped *apart*.
_TABLE_OF_RANKS = """
           raw            scaled apart       final apart         exchanged       scaled       final
backward   raw            raw G413           raw G402            raw G413        raw G413     raw G402
exchange   exchanged      scaled G412        final G703          exchanged G704  scaled G704  final G704
scale      scaled apart   scaled apart G412  final apart G412    scaled          scaled G412  final G412
clip       final apart    final apart        final apart         final           final        final
read       raw G703       scaled apart G703  final apart G703    exchanged       scaled       final
divide     raw            scaled apart       final apart G412    exchanged       scaled       final G412
use        used           used               used                used            used         used
step       used G702      used G702          used G702           used            used         used
zero_grad  clean G404     clean G404         clean G404          clean G404      clean G404   clean G404
"""
# Gradients are divided once by the scale of a loss, or by the count of a sum. `owe`: a backward pass after which they
# have to be divided; `add`: another pass of the same window; `mix`: a pass whose gradients must not be divided.
_TABLE_OF_DIVISORS = """
           clean  plain  owing      mixed       divided
owe        owing  owing  owing      mixed       owing G414
add        plain  plain  owing      mixed       divided
mix        mixed  mixed  mixed      mixed       mixed
divide     clean  plain  divided    mixed G414  divided G414
step       clean  plain  owing G414 mixed       divided
zero_grad  clean  clean  clean      clean       clean
"""
# The words of messages: effect -> what a node does; state -> what was done before.
_DOES = {"scale": "unscales", "clip": "changes"}  # of others with an s, as in "divides"
_DONE = {"exchanged": "exchanged", "scaled": "unscaled", "final": "clipped"}
_ORDER = "in each window, in this order: backward passes, `exchange`, `unscale`, `divide`, `clip`, and one step"
# Code, followed by effect and state where messages differ -> message, hint, and the severity unless it is an error.
_FAULTS: dict[str, tuple[str, str] | tuple[str, str, Severity]] = {
    "G401": (
        "`{node}` steps {optimizer}, which has no gradients since they were cleared",
        "route every path to it through a backward pass, or guard it by a count of backward passes, as "
        "`accumulation_reached` does",
    ),
    "G402": ("`{node}` adds gradients of {optimizer} to some that are already clipped or changed", _ORDER),
    "G403": (
        "`{node}` steps {optimizer} a second time with the same gradients",
        "put a backward pass between the two steps, or remove one of them",
    ),
    "G404": (
        "`{node}` clears gradients of {optimizer} that no step has used",
        "clear them after the step. If no step is meant to use them, as where another optimizer shares the parameters, "
        "put a node of the kind `use` for {optimizer} before it; the kind `discard` drops them",
    ),
    "G405": (
        "`{node}` adds gradients of {optimizer} to those of the last step, which were not cleared",
        "route every path from the step to here through a node that clears them, such as `zero_grad`",
    ),
    "G406": ("`{node}` {does} gradients of {optimizer} after the step has used them", _ORDER),
    "G411": (
        "`{node}` {does} gradients of {optimizer} where there are none",
        "route every path to it through a backward pass, or guard it by a count of backward passes",
        "warning",
    ),
    "G411 read": (
        "`{node}` reads gradients of {optimizer} where there are none",
        "put it between the last backward pass of a window and `zero_grad`, on every path",
    ),
    "G412": ("`{node}` {does} gradients of {optimizer} that were {done} already", _ORDER),
    "G413": ("`{node}` adds gradients of {optimizer} to some that were {done} already", _ORDER),
    "G414 owe": (
        "`{node}` adds gradients of {optimizer} to some that `{divisor}` has divided",
        "divide once per window",
    ),
    "G414 divide mixed": (
        "`{node}` divides gradients of {optimizer} by `{divisor}`, and some losses were not multiplied by it",
        'let every node on the path that runs backward read it: reads = {{ loss_scale = "{divisor}" }}',
    ),
    "G414 divide": ("`{node}` divides gradients of {optimizer} by `{divisor}` a second time", "divide once per window"),
    "G414 step": (
        "`{node}` steps {optimizer} with gradients that were not divided by `{divisor}`",
        "route every path to it through a node that divides, such as `unscale` by a scale, or `divide` by a count",
    ),
    "G702": (
        "`{node}` steps {optimizer} with gradients that were not exchanged: weights would diverge between ranks",
        'sum them over ranks before: insert("exchange", before="clip"); a kind that steps itself does so, as '
        "`closure_step` does",
    ),
    "G703": ("`{node}` {does} gradients of {optimizer} of which each rank has clipped its own part", _ORDER),
    "G703 read": (
        "`{node}` reads gradients of {optimizer} before they are exchanged: each rank has others",
        "put it after `exchange`",
    ),
    "G704": ("`{node}` {does} gradients of {optimizer} that were exchanged already", _ORDER),
}


def _rules(table: str) -> dict[tuple[str, State], tuple[State, Fault | None]]:
    """(effect, state) -> the state after it, and the fault or None."""
    rules: dict[tuple[str, State], tuple[State, Fault | None]] = {}
    first, *rows = table.strip("\n").splitlines()
    for row in rows:
        effect, *cells = re.findall(r"[a-z_]+(?: apart)?(?: G\d+)?", row)
        for state, cell in zip(re.findall(r"[a-z]+(?: apart)?", first), cells, strict=True):
            after, _, code = cell.partition(" G")
            rules[effect, state] = after, _fault(f"G{code}", effect, state.removesuffix(" apart")) if code else None
    return rules


def _fault(code: str, effect: str, state: str) -> Fault:
    of_effect = _FAULTS.get(f"{code} {effect} {state}") or _FAULTS.get(f"{code} {effect}")
    message, hint, *severity = of_effect or _FAULTS[code]
    message = message.replace("{does}", _DOES.get(effect, f"{effect}s")).replace("{done}", _DONE.get(state, ""))
    return Fault(code, message, hint, *severity)


RULES = _rules(_TABLE)
RULES_OF_RANKS = RULES | _rules(_TABLE_OF_RANKS)
RULES_OF_DIVISORS = _rules(_TABLE_OF_DIVISORS)

NEVER_CLEARED = Fault(
    "G405",
    "the gradients of {optimizer} are never cleared: those of `{node}` add up over all steps",
    'add a node of the kind `zero_grad` after the step: insert("zero_grad", after="{step}")',
)
OPEN = Fault(
    "G407",
    "the run can end after `{node}` with gradients of {optimizer} that no step has used",
    'let the edge to the end require a closed window, as in `finished = "finish.due and accumulate.count == 0"`, '
    "or route it through a step or a `discard`",
)
TOO_EARLY = Fault(
    "G409",
    "`{node}` divides the loss by `{window}`, but `{acting}` ends the window after {passes} of {size} backward passes",
    "route the path through a guard that reads whether the window is full, as `accumulation_reached` does; do not "
    'divide: reads = {{ window = "1" }} of `{node}`; or use the kind `discard` to throw a window away',
)
MISCOUNTED = Fault(
    "G409",
    "`{node}` divides the loss by `{window}`, but adds to a window that is full: {passes} backward passes would be "
    "divided by {size}",
    "`{window}` counts backward passes: set a multiple of those between two guards for a mean; for a sum return one "
    'loss from one step function; or allow = ["G409"] if that is meant',
)
MISCOUNTED_BY_ONE = replace(MISCOUNTED, severity="warning")  # it leaves the sum, which may be meant
WRONG_MODE = Fault(
    "G415",
    "`{node}` {does} evaluation mode of `{model}`",
    "route every path from where the evaluation begins through a node that restores the training mode, such as "
    "`end_evaluation`",
)
