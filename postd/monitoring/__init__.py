"""Monitoring: counters (`tally`), their Prometheus names (`exposition`), and the health of a server (`health`)."""
