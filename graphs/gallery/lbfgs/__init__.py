"""The procedure `lbfgs`: its text, its kinds, its example and its picture."""
