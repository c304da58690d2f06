"""What can be checked against an RFC alone.

1. Values, bytes and `now` in, values out: no I/O, no clock, no Twisted.
2. A module names the sections it implements; its tests quote their examples.
"""
