"""Every code of the checks, and its meaning; docs/checks.md says what each prevents."""

from __future__ import annotations

CODES: dict[str, str] = {
    "G101": "a node that is named does not exist",
    "G102": "a kind does not exist",
    "G103": "a parameter does not exist",
    "G104": "a parameter is missing, or has the wrong type",
    "G105": "a guard that an edge names does not exist",
    "G106": "a unit of a trigger does not exist",
    "G107": "a node is never reached",
    "G108": "a node cannot reach the end",
    "G109": "the last edge of a node has a guard",
    "G110": "an edge follows one that is always taken",
    "G113": "a node has no edge",
    "G114": "a name is not valid",
    "G115": "a slot that is renamed or handed out does not exist",
    "G116": "a field that is read or counted does not exist",
    "G117": "a code in `allow` does not exist, or cannot be allowed",
    "G119": "a run could not start with these settings",
    "G201": "a guard is not an expression",
    "G202": "a name in a guard does not exist",
    "G203": "a field in a guard does not exist",
    "G204": "types in a guard do not fit",
    "G205": "a guard is always true, or always false",
    "G206": "a guard is evaluated a second time, so its edge is never taken",
    "G207": "a guard is defined in terms of itself",
    "G208": "a guard has the name of a slot",
    "G209": "a guard is not used",
    "G211": "a parameter cannot be given an expression",
    "G301": "a slot is read that nothing writes or supplies",
    "G302": "a resource is supplied that nothing reads",
    "G303": "a slot is read that is never written before",
    "G304": "a slot is read that is not written on every path",
    "G307": "two evaluations record the same metrics",
    "G309": "data gives no batches: it is a mapping, or a dataset",
    "G401": "a step without gradients",
    "G402": "gradients are added to clipped ones",
    "G403": "two steps with the same gradients",
    "G404": "gradients are cleared that no step has used",
    "G405": "gradients are added to those of the step before",
    "G406": "gradients are exchanged, unscaled, divided or clipped after the step",
    "G407": "the run can end with gradients that nothing used",
    "G408": "an optimizer is never stepped",
    "G409": "a loss is divided by a window that no guard checks",
    "G410": "a node does not say which of several optimizers it is for",
    "G411": "gradients are exchanged, unscaled, divided, clipped, read or used where there are none",
    "G412": "gradients are exchanged, unscaled or divided out of order, or twice",
    "G413": "gradients are added to exchanged or unscaled ones",
    "G414": "gradients are not divided once by the scale or count of their loss",
    "G415": "a backward pass in evaluation mode, or a body that leaves it on",
    "G501": "the run can loop forever",
    "G502": "no node in a loop can change the guard that leaves it",
    "G503": "whether a loop ends is not checked",
    "G504": "the run can never end",
    "G505": "an amount decides nothing",
    "G601": "the run can train forever without a save point",
    "G602": "a checkpoint is requested where a value that is still needed cannot be saved",
    "G701": "several ranks: a guard reads a value that differs between them",
    "G702": "several ranks: a step with gradients that were not exchanged",
    "G703": "several ranks: gradients are clipped or read before they are exchanged",
    "G704": "several ranks: gradients are exchanged twice in a window",
    "G705": "several ranks: a cycle without a synchronisation point",
    "G706": "several ranks: the window of one rank is read as that of all",
}

_WARNINGS = frozenset({"G117", "G209"})


def can_be_allowed(code: str) -> bool:
    """True for a problem that a graph may allow; one that makes it invalid cannot be allowed.

    >>> can_be_allowed("G404"), can_be_allowed("G104"), can_be_allowed("G209")
    (True, False, True)
    """
    return code >= "G3" or code in _WARNINGS
