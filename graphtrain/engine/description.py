"""What a program is about to do, for whoever starts it: its models, and what happens when."""

from __future__ import annotations

import torch

from graphtrain.display.summary import Activity, ModelSummary, Summary
from graphtrain.engine.program import Program
from graphtrain.trigger import Trigger

_MOST_AMOUNTS = 3


def summary_of(program: Program) -> Summary:
    """The models among the resources, and every node of the outermost graph that has a trigger."""
    models = {name: ModelSummary.of(one) for name, one in program.resources.items() if isinstance(one, torch.nn.Module)}
    activities = []
    for bound in program.main.nodes.values():
        verb = bound.kind.trigger
        trigger = bound.parameters.get(verb) if verb is not None else None
        if verb is not None and isinstance(trigger, Trigger):
            amount = " or ".join(str(term) for term in trigger.terms[:_MOST_AMOUNTS])
            remark = "bypassed" if bound.bypassed else "" if trigger.terms else "never"
            activities.append(Activity(bound.path, verb, amount, remark))
    return Summary(program.graph.name, models, activities)
