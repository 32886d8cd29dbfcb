"""The pages of an audit: what they say, what they draw, how they are written."""
