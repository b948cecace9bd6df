"""The claims of the paper, the talk and the blog, each judged by what a run computes."""
