"""The claims of the paper, the talk and the blog, each with checks that decide it."""
