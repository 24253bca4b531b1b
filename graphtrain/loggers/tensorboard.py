"""The old place of `graphtrain.metrics.tensorboard`."""

from graphtrain.metrics.tensorboard import TensorBoard as TensorBoard
