"""The loggers that come with graphtrain: a table of comma-separated values."""

from graphtrain.metrics.csv import CSV as CSV
