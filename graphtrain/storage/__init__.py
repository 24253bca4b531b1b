"""Checkpoints on disk: plain msgpack and safetensors, checksummed, renamed into place. No pickle anywhere."""
