"""The claims of the talk, the abstract, the slides, the blog and a review, each with checks that
decide it.
"""
