"""The procedure `kfold`: its text, its kinds, its example and its picture."""
