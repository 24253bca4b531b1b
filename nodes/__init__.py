"""The shipped kinds: one file each, under the name of the kind. A name with an underscore is a helper of theirs."""
