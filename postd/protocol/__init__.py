"""Code that can be checked against an RFC alone.

1. Functions of values, bytes and `now`: no I/O, no clock, no Twisted.
2. A module names the sections it implements; its tests quote their examples.
"""
