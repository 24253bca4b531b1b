"""The procedure `gan`: its text, its kinds, its example and its picture."""
