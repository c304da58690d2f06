"""The board: pages with the posts, and forms, for signed-in users. `views` has the routes, `pages` makes the HTML."""
