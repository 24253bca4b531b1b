"""The procedure `val_guided`: its text, its kinds, its example and its picture."""
