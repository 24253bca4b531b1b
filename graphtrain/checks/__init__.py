"""Checks a graph before it runs: every problem at once, each with a stable code."""

from graphtrain.checks.check import check_graph as check_graph
from graphtrain.checks.check import checked_graph as checked_graph
