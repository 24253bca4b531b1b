"""The guard language: pure boolean expressions, parsed against an allow-list, never evaluated as Python."""
