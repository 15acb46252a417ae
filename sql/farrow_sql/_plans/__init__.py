"""Plans: what a query becomes, cut into stages whose tasks run anywhere."""
