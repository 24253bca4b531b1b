"""What each code of a problem means: its title, what would happen without the check, and what to do.

`graphtrain explain G404` prints a code, and the page of checks has them all. In the text, a code with its title is
followed by what would happen, and after `=>` by what to do.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TEXT = """
G0xx The text
G001 the file is not TOML
  It could not be read. => Correct the line in the message.
G002 a key does not exist
  It would be ignored. => Use the key in the hint.
G003 a key is missing, or its value is not what is expected there
  The graph would not be the intended one. => Write what the message expects.
G004 a graph or an overlay that the file names does not exist
  It could not be read. => Use a name that `graphtrain graphs` lists, or a path that ends in .toml.
G005 an edit cannot be applied
  It would be left out. => Follow the hint; an edit names what the graph has after the edits before it.
G1xx Structure: names, parameters, edges
G101 a node that is named does not exist
  The run would fail at once. => Use the name of an existing node.
G102 a kind does not exist
  The node would have nothing to do. => Use a kind that `graphtrain nodes` lists; those of a script need `--script`.
G103 a parameter does not exist
  The value would be ignored. => Use the parameter in the hint; `graphtrain nodes clip` lists those of a kind.
G104 a parameter is missing, or its value has the wrong type
  The unit of a number would be a guess. => Use the type in the message, as in `after = "10 epochs"`.
G105 a guard that an edge names does not exist
  The edge would have no condition. => Define the guard, or use the name of an existing one.
G106 a unit of a trigger does not exist
  Nothing counts it, so the node would never be due. => Use a unit of the clock, or add one to the clock.
G107 a node is never reached
  It would never run. => Connect it, or remove it.
G108 a node cannot reach the end
  The run would enter it and never end. => Add an edge that leads back to the rest of the graph.
G109 the last edge of a node has a guard
  If no guard is true, the run would fail in the middle. => Add a last edge without a guard.
G110 an edge follows one that is always taken
  It would never be taken. => Move the edge without a guard to the end.
G113 a node has no edge
  The run would fail at it. => Connect the node: `insert` takes `after`, `before` or `between`.
G114 a name is not valid
  No guard could read the fields of the node. => Use an identifier that is no Python keyword, nor `pi` or `inf`.
G115 a slot that is renamed, or is an output, does not exist
  The renaming would have no effect: the wrong optimizer would be stepped. => Use a slot that the kind reads or writes.
G116 a field that is read or counted does not exist, or is not a number
  A trigger could not count it. => Use a numeric field of the node.
G119 a run could not start with these settings
  The start would be refused, as where a node may return to a checkpoint and none saves one. => Follow the hint.
G2xx Guards
G201 a guard is not an expression
  It could not be evaluated. => Write it in the language of guards (docs/graph-file.md).
G202 a name in a guard does not exist
  It could not be evaluated. => Use the name of a guard or of a slot, or `node.field`.
G203 a field in a guard does not exist
  It could not be evaluated. => Use a field of the node.
G204 types in a guard do not fit
  A number would count as a truth value, which is false only at the first visit. => Compare the number with something.
G205 a guard is always true, or always false
  Its edge, or those after it, would never be taken. => Remove the guard, or the edge.
G206 a guard is evaluated a second time, so its edge is never taken
  The edge would have no effect. => Use another guard, or remove the edge.
G207 a guard is defined in terms of itself
  It has no meaning. => Define it in terms of other names.
G208 a guard has the name of a slot
  In another guard, the name could mean either. => Rename the guard.
G209 a guard is not used (a warning)
  An edge that should use it may be missing. => Use it, or remove it.
G211 a parameter cannot have an expression
  Nothing would read the value of the expression. => Set a value, or use a kind with `@node(varying=...)`.
G3xx Data: slots
G301 a slot is read that nothing writes or supplies (found when a Trainer is created)
  The argument of the node would have no value. => Supply it, or insert the node that writes it.
G302 a resource that nothing reads is nearly the name of one that is read, or a setting of another library
  The setting would be ignored. => Use the name in the hint, set that parameter, or leave the resource out.
G303 a slot is read before it is written
  The node would have no value, or an old one. => Write it first; in a loop, before the first round reads it.
G304 a slot is read that is not written on every path (a warning)
  On that path there would be no value. => Read it after the node that writes it, or with a default, `loss=None`.
G307 two evaluations record the same metrics
  `val/loss` would be one or the other, for `checkpoint.best` too. => Set `split` of `begin_evaluation` in one of them.
G309 data that gives no batches: a mapping of arrays, or a dataset
  The step function would get samples, or keys. => Supply a loader, as in `Loader(train_data, batch_size=32)`.
G4xx Gradients and modes
G401 a step without gradients
  Weight decay and momentum alone would change the weights. => Step after a backward pass, before gradients are cleared.
G402 gradients are added to clipped ones
  The sum of four clipped gradients has up to four times the norm. => Clip once, before the step.
G403 two steps with the same gradients
  Each batch would move the weights twice: twice the learning rate that was set. => Remove one of them.
G404 gradients are cleared that no step has used
  The model would not learn from them. => Clear after the step; `discard` drops gradients on purpose.
G405 gradients are added to those of the step before
  Every step would use the gradients of all batches so far: the loss falls, then diverges. => Clear after every step.
G406 gradients are exchanged, unscaled, divided or clipped after the step
  The step has already used them as they were. => Do it before the step.
G407 the run can end with gradients that no step has used
  The last batches would be lost. => Also require `accumulate.count == 0` at the end, or the guard under which it steps.
G408 an optimizer is never stepped
  Its weights would never change. => Add a step for it.
G409 a loss is divided by another number than the backward passes of its window
  The learning rate would be another one than was set. => Lead the path through `accumulate`, or do not divide.
G410 a node does not say which of several optimizers it is for
  It would act on the wrong one. => Name it: `reads = { optimizer = "d" }`, or `optimizer = "d"` for the whole graph.
G411 gradients are exchanged, unscaled, divided, clipped or read where there are none (a warning, unless they are read)
  Nothing would be clipped, and a norm would be 0. => Move it behind a backward pass and before `zero_grad`.
G412 gradients are exchanged, unscaled or divided out of order, or twice
  Gradients that are still scaled would be clipped almost to nothing. => Follow the order in the hint.
G413 gradients are added to exchanged or unscaled ones
  Those of the last batch would weigh 65,536 times as much as the others. => Unscale and exchange after `accumulate`.
G414 gradients are not divided once by the scale or the count of their loss
  Every step would be many times too large or too small. => Divide once on every path; for a sum, `allow = ["G414"]`.
G415 a backward pass in evaluation mode, or a body that leaves it on
  The rest of the run would train without dropout. => Restore the mode on every path; freeze statistics in `forward`.
G5xx Loops
G501 the run can loop forever
  It would repeat some nodes without progress. => Let a guard in the message read what a node of the loop changes.
G503 the graph is too large to be checked any further (a warning)
  Problems that only long paths show might not be found. => Use fewer conditions, or move a part into a nested graph.
G504 the run never ends
  It would train until it is killed. => Set an end; if a step function returns STOP, set `allow = ["G504"]`.
G6xx Saving
G601 the run can train forever without a save point
  Signals and checkpoints would wait forever. => Read the value in the round that writes it, or keep it as progress.
G602 a checkpoint where a value that is still needed cannot be saved (a warning)
  It would be made later, once the value was read. => Move `checkpoint`, or keep the value as progress.
G7xx Several ranks
G701 a guard reads a value that differs between ranks
  The ranks would take different edges. => Let a kind declared with `synchronises` gather it (docs/scale.md).
G702 a step with gradients that were not exchanged
  The weights of the ranks would diverge. => `insert("exchange", before="clip")`; or `allow = ["G702"]`.
G703 gradients are clipped or read before they are exchanged
  Each rank would clip its own part by its own norm. => Put `exchange` before `clip` and `gradient_norm`.
G704 gradients are exchanged twice in a window
  They would be multiplied by the number of ranks. => Remove one of the two.
G706 the window of one rank is read as that of all
  Gradients would be multiplied by the number of ranks. => Read `accumulate.window`, or `accumulate.full`.
"""


class Code(NamedTuple):
    """A code: its title, what would happen without the check, and what to do."""

    title: str
    consequence: str
    remedy: str


_CODE = re.compile(r"^(G\d\d\d) (.+)\n((?:  .+\n)+)", re.MULTILINE)

FAMILIES = dict(re.findall(r"^(G\d)xx (.+)$", _TEXT, re.MULTILINE))
"""The first two characters of codes -> what these checks are about."""
CODES = {name: Code(title, *" ".join(text.split()).split(" => ")) for name, title, text in _CODE.findall(_TEXT)}
"""Every code, in order."""
