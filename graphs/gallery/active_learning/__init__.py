"""The procedure `active_learning`: its text, its kinds, its example and its picture."""
