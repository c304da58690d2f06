"""The programs of other makers that were run with postd: what each does, and the page that says so.

`python -m tests.field` runs entries whose result is missing or old, and writes the results and the page. Rules:

- An entry is a row of `clients.toml` or `others.toml`: how to install the program, what to run, what is expected.
- Clients are run by their command lines, through a recorder: what counts is what they send and receive.
- Issuers, proxies, stores and tools are run by a test, of `tests/system` if it is fast enough, else of this folder.
- A program that could not be installed or run has no row on the page.
"""
