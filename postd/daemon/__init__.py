"""The daemon: from the command line and the settings to running server processes.

1. `tap` has twistd's options and nothing else; `service` is the composition root, the one place that knows all parts.
2. `server` is one server process, `worker_pool` and `worker` are several; `operations` is what signals, systemd and the
   admin listeners do with either.
3. Only the command `postd` imports from it, to check settings and issuers as the daemon does.
"""
