#!/usr/bin/env bash
# An entity tag is any text of visible characters between quotes, also with a comma: "a,b" (RFC 9110 section 8.8.3).
#
# One would expect: `ConditionalGetMiddleware` and `condition()` of Django compare such a tag as any other.
# Seen with Django 5.2.19: a field with such a tag counts as absent. `If-None-Match: "a,b"` for the response with the tag
# "a,b" is 200, never 304, and `If-Match: "c,d"`, which asks for 412, is 200, too: the later of two changes wins.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q Django==5.2.19
bin/python - >seen <<'PYTHON'
import django
from django.conf import settings

settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="for this script")
django.setup()
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils.cache import get_conditional_response

for tag, sent in (('"x"', '"x"'), ('"x"', '"y"'), ('"a,b"', '"a,b"'), ('"a,b"', '"c,d"')):
    for field in ("If-None-Match", "If-Match"):
        request = RequestFactory().get("/", headers={field: sent})
        response = get_conditional_response(request, etag=tag, response=HttpResponse("text"))
        print(f"tag {tag}, {field}: {sent}: {response.status_code}")
PYTHON
diff - seen <<'SEEN'
tag "x", If-None-Match: "x": 304
tag "x", If-Match: "x": 200
tag "x", If-None-Match: "y": 200
tag "x", If-Match: "y": 412
tag "a,b", If-None-Match: "a,b": 200
tag "a,b", If-Match: "a,b": 200
tag "a,b", If-None-Match: "c,d": 200
tag "a,b", If-Match: "c,d": 200
SEEN
