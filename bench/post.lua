-- Each request adds the same text, as long as the posts of the other rows.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"post": "A post that says nothing new, but is as long as most are"}'
