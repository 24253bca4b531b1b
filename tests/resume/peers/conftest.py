"""What imports the frameworks is run in their environment, and holds no doctests."""

collect_ignore_glob = ["with_lightning*.py", "with_transformers.py"]
