"""Labels by people: schemes, the plan of who labels what, the store, the pages, and statistics of raters."""
