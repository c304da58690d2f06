"""The `postd` command: what an administrator types, and a user (contract 1).

1. A module here is a command or a group of commands, and a line in `main.py`; what several need is in `shared.py`.
2. Commands read arguments, call what knows how, and print; what knows how is in the other layers.
3. A command that fails raises: `main.py` makes one line on stderr and an exit status of it.
"""
