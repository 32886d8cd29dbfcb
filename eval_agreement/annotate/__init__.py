"""People's labels: what they are shown, who labels what, where labels are kept, and what they say about people."""
