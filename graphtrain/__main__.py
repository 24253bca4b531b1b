"""`python -m graphtrain` is the command `graphtrain`."""

from graphtrain.command.cli import main

if __name__ == "__main__":
    main()
