-- GET of the first page of twenty posts.
wrk.path = "/post?limit=20"
