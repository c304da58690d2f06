-- Every request adds the same post, of the length that the lists of the other rows have.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"post": "A post that says nothing new, but is as long as most are"}'
