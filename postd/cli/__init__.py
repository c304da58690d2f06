"""The `postd` command, for administrators and users (reference: Command line).

1. `main` has the table of commands. `check`, `posts`, `session`, `transfer` and `user` are commands; the other modules
   are shared by them: `options`, `with_store` and `run_async` (how a command runs), and input and output.
2. A command decodes arguments, calls the other layers, and prints.
3. A command that fails raises an error; `main` turns it into one line on stderr and an exit status.
"""
