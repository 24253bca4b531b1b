"""The set-ups of the table trained otherwise: by a loop written by hand, by Lightning, and by Transformers."""
