"""Pages of HTML: their frame, their charts, and what notebooks show."""
