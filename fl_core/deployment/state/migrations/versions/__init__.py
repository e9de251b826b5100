"""One module a step; each names the one before it. A step that was published is never changed."""
