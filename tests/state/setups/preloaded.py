"""What the server has imported that processes of rows are forked from: the table, and all that most rows need."""

from __future__ import annotations

from graphtrain import Graph
from graphtrain.checks import checked_graph
from tests.state.setups import cutting as cutting

checked_graph(Graph.load("fit"))  # which imports the kinds, and what checks graphs
