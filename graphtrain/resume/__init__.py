"""Saving a run and resuming it: state, graph, hyper-parameters, environment, provenance."""
