"""Authentication schemes as values: a module for each, with its options, parts, checks and texts.

A scheme is a `postd.protect.schemes.interface.Scheme`. The computation of a scheme is in `postd.protocol`, its checker
in `postd.auth`, its header fields and forms are in `postd.protect`; the modules here put them together. `issuers` is
the part of Bearer that is imported only if there are issuers, `own` is for schemes of applications.
"""
