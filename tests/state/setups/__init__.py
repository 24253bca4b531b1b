"""Set-ups that people use, each with what a resume of it must report: `exact`, or what is lost."""
