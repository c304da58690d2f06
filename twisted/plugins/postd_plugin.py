"""Tells `twistd` that there is a `postd`; names the module as text, so that listing plugins imports nothing of it."""

from twisted.application.service import ServiceMaker

postd = ServiceMaker("postd", "postd.daemon.tap", "Keep short text posts behind a JSON API.", "postd")
