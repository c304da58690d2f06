"""What is counted, and how it is told to Prometheus (contract 6).

- `tally` counts, in each process: plain values, which can be sent elsewhere and added up.
- `exposition` knows the names under which they are told, and prometheus-client.
- Neither knows who counts; nothing else in postd knows prometheus-client.
"""
