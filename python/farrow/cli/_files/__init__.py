"""Files of tables: what they are, how large, and how they are read and written."""
