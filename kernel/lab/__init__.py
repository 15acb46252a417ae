"""The laboratory: ``guests`` builds and boots, ``grid`` measures, ``figures`` draws."""
