"""The `postd` command, for administrators and users (reference: Command line).

`main` has the table of commands, and turns an error of a command into one line on stderr and an exit status.
"""
