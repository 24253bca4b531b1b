"""The procedure `maml`: its text, its kinds, its example and its picture."""
