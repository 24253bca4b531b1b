"""Checks a graph before it runs: every problem at once, each with a stable code.

Promise: a graph that is accepted starts; one that is refused is refused with the path that leads to the harm. No torch
is imported.

Stands on: kind, graph, plan, program.

Other rooms use:
    codes: CODES
"""

from graphtrain.checks.check import check_graph as check_graph
from graphtrain.checks.check import checked_graph as checked_graph
