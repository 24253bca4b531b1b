"""The procedure `unfreeze`: its text, its kinds, its example and its picture."""
