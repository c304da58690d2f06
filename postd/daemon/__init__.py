"""The daemon: from the command line and the settings to running server processes.

`tap` has twistd's options. `service` composes a daemon of one process (`server`) or of several (`worker_pool`,
`worker`) with the work for signals, systemd and the admin listeners (`operations`). `tests/test_layers.py` has the
modules that `cli` and `testing` may import.
"""
