"""The procedure `tbptt`: its text, its kinds, its example and its picture."""
