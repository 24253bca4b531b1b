"""The old place of the loggers: they are in `graphtrain.metrics`."""
