"""A client made from /openapi.json by openapi-python-client does all with a post; prints what it got, as JSON."""

import base64
import json
import sys

from generated.api.posts import (  # type: ignore[import-not-found]
    add_post,
    delete_post,
    get_post,
    list_posts,
    replace_post,
)
from generated.client import AuthenticatedClient  # type: ignore[import-not-found]
from generated.models import NewText  # type: ignore[import-not-found]

origin, username, password = sys.argv[1:]
token = base64.b64encode(f"{username}:{password}".encode()).decode()
client = AuthenticatedClient(origin, token=token, prefix="Basic", raise_on_unexpected_status=True)
added = add_post.sync(client=client, body=NewText("one"))
invalid = add_post.sync(client=client, body=NewText(""))
listed = list_posts.sync(client=client, limit=1000)
post_id = listed[-1].id
one = get_post.sync_detailed(post_id, client=client)
etag = one.headers["ETag"]
replaced = replace_post.sync(post_id, client=client, body=NewText("two"), if_match=etag)
stale = replace_post.sync(post_id, client=client, body=NewText("three"), if_match=etag)
deleted = delete_post.sync(post_id, client=client)
missing = get_post.sync(post_id, client=client)
texts = [post.post for post in listed]
sys.stdout.write(
    json.dumps([added, invalid.pointer, texts, one.parsed.post, replaced, stale.status, deleted, missing.status])
)
