"""The procedure `distill`: its text, its kinds, its example and its picture."""
